"""`predict`: finished runs of the simulator in, a timeline out."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from common import hardware as chips
from common.hardware import Hardware
from devicetime import constants as numbers
from devicetime import nodes, report, scheduler
from devicetime.constants import Constants
from devicetime.cost import Machine
from devicetime.nodes import CoreWork, Work
from devicetime.timeline import Timeline
from nkisim.execution import CoreReport, Run


@dataclass(frozen=True)
class Prediction:
    """Everything behind a timeline, for those who ask what made it.

    Attributes:
        machine: target and constants.
        reports: of the cores, rank by rank.
        cores, work: what they do, each alone and merged.
        schedule: when it runs, an array of `scheduler.SCHEDULE`.
    """

    machine: Machine
    reports: tuple[CoreReport, ...]
    cores: tuple[CoreWork, ...]
    work: Work
    schedule: np.ndarray


def predict(runs: Run | Sequence[Run], target: str | Hardware = "trn2", constants: Constants | None = None) -> Timeline:
    """When each recorded instruction would run on the device; simulated.

    Args:
        runs: one finished run, or those of all ranks in rank order, of one core or two each; with values or without.
        target: what they ran on.
        constants: other numbers than the target's.

    Raises:
        ValueError: the target is unknown, nothing was recorded, or instructions wait for each other.
    """
    with _no_collections():
        return report.timeline(explain(runs, target, constants))


def explain(
    runs: Run | Sequence[Run], target: str | Hardware = "trn2", constants: Constants | None = None
) -> Prediction:
    """As `predict`, with what the timeline is made from."""
    hardware = chips.get(target) if isinstance(target, str) else target
    machine = Machine(hardware, constants or numbers.of(hardware))
    ranks = [runs] if isinstance(runs, Run) else list(runs)
    reports = [(core, rank) for rank, run in enumerate(ranks) for core in run.cores if core.stream]
    if not reports:
        raise ValueError("runs recorded no instructions; accepted: at least one")
    cores = tuple(nodes.of_core(core, rank, machine) for core, rank in reports)
    return scheduled(machine, tuple(core for core, _ in reports), cores, nodes.merge(cores))


def scheduled(machine: Machine, reports: tuple[CoreReport, ...], cores: tuple[CoreWork, ...], work: Work) -> Prediction:
    """Runs nodes on a machine."""
    made = scheduler.schedule(work, machine.constants, machine.hardware.dma_engines_per_core)
    return Prediction(machine, reports, cores, work, made)


@contextmanager
def _no_collections() -> Iterator[None]:
    """Records are many small tuples that no cycle holds; looking for cycles among them would cost more than they do."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()

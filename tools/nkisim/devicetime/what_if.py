"""How much sooner a kernel would end if an engine, HBM or a cause of waiting cost nothing: the schedule made again."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from devicetime import predict
from devicetime.cost import TRACK_NAMES
from devicetime.dependencies import DEPENDENCY, ORDER, REUSE
from devicetime.nodes import COMES, TRANSFER, Work
from devicetime.predict import Prediction
from devicetime.timeline import Cause

_FREE = 1e12
"""A bandwidth in bytes per ns that nothing notices."""


@dataclass(frozen=True)
class WhatIf:
    """A prediction without something.

    Attributes:
        without: what costs nothing.
        total_ns: then.
        gain: share of the kernel's time that this saves. List scheduling can lose a little by it: the order that is
            best step by step need not be the best one; such a loss is shown as it is.
    """

    without: str
    total_ns: float
    gain: float


def what_if(prediction: Prediction) -> list[WhatIf]:
    """Answers for each engine, the DMA engines, HBM, throttling and each cause of waiting that can be taken away."""
    now = _total_ns(prediction)
    changed = {
        **{f"{name} Engine": _engine_free(prediction, number) for number, name in _engines(prediction)},
        "DMA engines": _nodes(prediction, TRANSFER, hold_ns=0.0, done_ns=0.0, hbm_bytes=0.0),
        "HBM": _constants(prediction, hbm_pair_bytes_per_ns=_FREE),
        "throttling": _constants(prediction, tensor_throttled_rate=1.0),
        Cause.dependency.name: _without_edges(prediction, DEPENDENCY),
        Cause.buffer_reuse.name: _without_edges(prediction, REUSE),
        Cause.order.name: _without_edges(prediction, ORDER),
        Cause.queue.name: _queues_free(prediction),
        Cause.bandwidth.name: _nodes(prediction, TRANSFER, hold_ns=0.0, hbm_bytes=0.0),
        Cause.semaphore.name: _constants(prediction, semaphore_ns=0.0, dma_completion_ns=0.0),
    }
    found = []
    for name, other in changed.items():
        total = _total_ns(predict.scheduled(other.machine, other.reports, other.cores, other.work))
        found.append(WhatIf(name, total, 1.0 - total / now))
    return found


def _total_ns(prediction: Prediction) -> float:
    return float(prediction.schedule["visible_ns"].max())


def _engines(prediction: Prediction) -> list[tuple[int, str]]:
    used = set(prediction.work.nodes["track"].tolist())
    return [(number, name) for number, name in enumerate(TRACK_NAMES) if number in used]


def _constants(prediction: Prediction, **values: Any) -> Prediction:
    machine = prediction.machine
    constants = dataclasses.replace(machine.constants, **values)
    return dataclasses.replace(prediction, machine=dataclasses.replace(machine, constants=constants))


def _nodes(prediction: Prediction, track: int, **values: float) -> Prediction:
    nodes = prediction.work.nodes.copy()
    for name, value in values.items():
        nodes[name][nodes["track"] == track] = value
    return dataclasses.replace(prediction, work=prediction.work._replace(nodes=nodes))


def _engine_free(prediction: Prediction, track: int) -> Prediction:
    """Its instructions take no time, and the descriptors that it makes are there at once."""
    changed = _nodes(prediction, track, hold_ns=0.0, done_ns=0.0, table=0)
    edges = changed.work.edges
    comes = edges[edges["kind"] == COMES]
    made_here = comes["after"][changed.work.nodes["track"][comes["before"]] == track]
    latency = np.minimum(changed.work.nodes["ready_ns"][made_here], changed.machine.constants.dma_fetch_ns)
    changed.work.nodes["ready_ns"][made_here] = latency
    changed.work.nodes["stagger_ns"][made_here] = 0.0
    return changed


def _queues_free(prediction: Prediction) -> Prediction:
    """Triggers take no time on any engine, and bytes move at once."""
    work = prediction.work
    nodes = work.nodes.copy()
    comes = work.edges[work.edges["kind"] == COMES]
    for name in ("hold_ns", "done_ns"):
        nodes[name][comes["before"]] = 0.0
    for name in ("ready_ns", "stagger_ns", "tail_ns"):
        nodes[name][comes["after"]] = 0.0
    return dataclasses.replace(prediction, work=work._replace(nodes=nodes))


def _without_edges(prediction: Prediction, kind: int) -> Prediction:
    work: Work = prediction.work
    return dataclasses.replace(prediction, work=work._replace(edges=work.edges[work.edges["kind"] != kind]))

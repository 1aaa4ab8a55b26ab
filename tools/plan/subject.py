"""What can be planned: a kernel's sizes and knobs, how it is planned, and how a plan is simulated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from common.hardware import Hardware
from nkisim.execution import CoreReport

Values = Mapping[str, int | None]
"""A value for each knob; None leaves it to the plan."""


@dataclass(frozen=True)
class Knob:
    """A size of the shape, or a choice of the plan that can be forced.

    Attributes:
        name: as an option, without the dashes: "dma-chunks".
        default: None where the plan chooses.
        at_least: the least value.
        help: what it is.
        size: whether it is a size; points are compared where all sizes are equal.
    """

    name: str
    default: int | None
    at_least: int
    help: str
    size: bool = False


@dataclass(frozen=True)
class Subject:
    """A kernel.

    Attributes:
        name: of the kernel.
        help: what it is, in a few words.
        target: what it is planned for unless the caller says otherwise.
        knobs: sizes first.
        plan: makes the plan for values on a target; ValueError where there is none. A plan prints as tables.
        simulate: records a plan's instructions, without values.
        chosen: what a plan decided, by name.
    """

    name: str
    help: str
    target: str
    knobs: tuple[Knob, ...]
    plan: Callable[[Values, Hardware], Any]
    simulate: Callable[[Any], tuple[CoreReport, ...]]
    chosen: Callable[[Any], dict[str, int | str]]

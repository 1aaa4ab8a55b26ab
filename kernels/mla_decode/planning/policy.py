"""The plan of least predicted time: every softmax group, number of latent tiles transposed by DMA, and way to share.

`plan.make` decides by rule, without a prediction; what the rules are worth is what `best` says of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from common.budget import BudgetError
from common.hardware import Hardware
from kernels.mla_decode.planning import plan
from kernels.mla_decode.planning.dims import Dims, FrontDims
from kernels.mla_decode.planning.plan import Plan

GROUPS = (1, 2, 4, 8)

TimeOf = Callable[[Plan], float]
"""Predicted ns of a plan."""


@dataclass(frozen=True)
class Choice:
    """A plan and why it was chosen.

    Attributes:
        plan: of least predicted time.
        predicted_ns: its time.
        rule_ns: that of the plan that `plan.make` gives by rule.
        tried: plans that were predicted.
    """

    plan: Plan
    predicted_ns: float
    rule_ns: float
    tried: int

    @property
    def why(self) -> str:
        """In a line."""
        return (
            f"least predicted time of {self.tried} plans: {self.predicted_ns / 1e3:,.1f} us, "
            f"{self.predicted_ns / self.rule_ns:.3f} of the {self.rule_ns / 1e3:,.1f} us by rule"
        )


def best(dims: Dims, hardware: Hardware, front: FrontDims | None = None, *, time_of: TimeOf) -> Choice:
    """The plan of least predicted time; deterministic if `time_of` is.

    Args:
        dims, hardware, front: as for `plan.make`.
        time_of: predicts; called once for each plan that is tried.

    Raises:
        TypeError, ValueError, BudgetError: as `plan.make`; the plan by rule is one of those tried.
    """
    by_rule = plan.make(dims, hardware, front=front)
    rule_ns = time_of(by_rule)
    chosen, shortest, tried = by_rule, rule_ns, 1
    for shared, chunks, group in _space(dims):
        other = _fitting(dims, hardware, front, chunks, group, shared)
        if other is None or other == by_rule:
            continue
        tried, time_ns = tried + 1, time_of(other)
        if time_ns < shortest:
            chosen, shortest = other, time_ns
    return Choice(chosen, shortest, rule_ns, tried)


def _space(dims: Dims) -> Iterator[tuple[str, int, int]]:
    """What the cores share, latent tiles transposed by DMA, and tokens of a softmax group."""
    for shared in dims.shareable:
        for chunks, group in itertools.product(_chunks(dims), _groups(dims.of_core(shared))):
            yield shared, chunks, group


def _chunks(dims: Dims) -> range:
    return range(dims.latent_tiles + 1 if dims.itemsize == 2 and not dims.fp8_cache else 1)


def _groups(dims: Dims) -> list[int]:
    """Of a core's part."""
    largest = min(dims.n_tokens, plan.P_MAX // dims.n_heads)
    return [group for group in GROUPS if group <= largest]


def _fitting(
    dims: Dims, hardware: Hardware, front: FrontDims | None, chunks: int, group: int, shared: str
) -> Plan | None:
    """The plan, None where it does not fit."""
    try:
        return plan.make(dims, hardware, chunks, front, group, cores_share=shared)
    except BudgetError:
        return None

"""What the bench does with calls of `qkv`, as language models and an unquantised Wan2.2 make them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import RenderableType

from common.hardware import Hardware
from kernels.qkv_cte.bench import search
from kernels.qkv_cte.host import entry
from kernels.qkv_cte.host.interface import NormType, QKNormConfig, QuantizationType
from kernels.qkv_cte.oracle.qkv_cases import QKVCase, random_call
from kernels.qkv_cte.oracle.qkv_compare import limit_of, max_ulps
from kernels.qkv_cte.planning import policy
from kernels.qkv_cte.planning.plan import Plan
from tools.bench.tables import new_table, note

_ACROSS, _RMS = NormType.RMS_NORM_ACROSS_HEADS, NormType.RMS_NORM

CASES = (
    QKVCase("wan_self_tp4", 9452, 5120, 10, 10, 128, lnc=2, bias=True, rope=True, pre=QKNormConfig(_ACROSS, _ACROSS)),
    QKVCase("wan_cross_k", 512, 5120, 40, 0, 128, lnc=2, bias=True, pre=QKNormConfig(_ACROSS), nbsd=True),
    QKVCase("llama_70b_tp8", 2048, 8192, 8, 1, 128, lnc=2, norm=_RMS, rope=True, cache="flat"),
    QKVCase(
        "qwen_32b_tp8_mxfp8", 2048, 5120, 8, 1, 128, lnc=2, norm=_RMS, rope=True, pre=QKNormConfig(_RMS, _RMS),
        cache="blocks", quantization=QuantizationType.MXFP8,
    ),
    QKVCase("llama_70b_tp8_decode", 64, 8192, 8, 1, 128, lnc=2, norm=_RMS, rope=True, cache="flat"),
)  # fmt: skip
"""bf16 but for the one in MXFP8; of Wan2.2 the norm is over this rank's heads alone."""

VALUES_SEQLEN = 258
"""Tokens for which values are computed: a ragged S-tile on each core."""


@dataclass(frozen=True)
class GeneralResult:
    """What was measured.

    Attributes:
        case: the call.
        plan: as the policy chose it.
        ns, seed_ns: predicted times of it and of the seed's.
        ulps, limit: largest error on fewer tokens and what is accepted; no error where none was computed.
    """

    case: QKVCase
    plan: Plan
    ns: float
    seed_ns: float
    ulps: float | None
    limit: float

    @property
    def accepted(self) -> bool:
        """Whether the error computed is within tolerance."""
        return self.ulps is None or self.ulps <= self.limit


def run(case: QKVCase, hardware: Hardware, chosen_by: str, *, values: bool) -> GeneralResult:
    """Chooses a plan, predicts, and computes values on fewer tokens where asked.

    Raises:
        TypeError, ValueError: the target does not have what the call needs.
    """
    call = random_call(case)
    prepared = entry.ENTRY.prepare(call, target=hardware.name, lnc=case.lnc)
    made = prepared.plan
    if chosen_by == "best":
        made = search.best(entry.ENTRY, call, target=hardware.name, lnc=case.lnc)
    ns, seed_ns = (search.predicted_ns(entry.ENTRY, each, prepared.tensors) for each in (made, prepared.plan))
    ulps = _ulps(case, hardware) if values else None
    return GeneralResult(case, made, ns, seed_ns, ulps, limit_of(call))


def _ulps(case: QKVCase, hardware: Hardware) -> float:
    """Largest error of a shorter call, in ulps of the output's type."""
    short = dataclasses.replace(case, seqlen=min(VALUES_SEQLEN, case.seqlen))
    call = random_call(short)
    return max_ulps(call, entry.qkv(**vars(call), target=hardware.name, lnc=case.lnc))


def tables(results: Sequence[GeneralResult]) -> Iterator[RenderableType]:
    """Plan, time and error."""
    made = new_table("general calls", "call", "tokens", "chosen", "us", "of seed", "weights x", "max ulps", "")
    for result in results:
        hbm, least = result.plan.hbm.weights, result.plan.minimum.weights
        made.add_row(
            result.case.name,
            f"{result.plan.dims.tokens:,}",
            policy.name_of(result.plan),
            f"{result.ns / 1e3:,.1f}",
            f"{result.ns / result.seed_ns:.2f}",
            f"{hbm / least:.2f}",
            "" if result.ulps is None else f"{result.ulps:.2f} of {result.limit}",
            "ok" if result.accepted else "OUT OF TOLERANCE",
        )
    yield made
    yield note(
        "Predicted by the device-time model for one rank; no Trainium was used. Seed: the time with --policy seed. "
        f"Weights: bytes read from HBM over the minimum. Errors: against fp64, on at most {VALUES_SEQLEN} tokens with "
        "the seed's plan."
    )


def as_dict(result: GeneralResult) -> dict[str, Any]:
    """For JSON."""
    return {
        "name": result.case.name,
        "policy": result.plan.policy,
        "plan": {"chosen": policy.name_of(result.plan), "why": list(result.plan.policy_why)},
        "choice": result.plan.choice.integers(),
        "predicted_ns": round(result.ns, 1),
        "seed_ns": round(result.seed_ns, 1),
        "hbm_bytes": dataclasses.asdict(result.plan.hbm),
        "minimum_hbm_bytes": dataclasses.asdict(result.plan.minimum),
        "max_ulps": result.ulps,
        "accepted_ulps": result.limit,
    }

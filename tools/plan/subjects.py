"""The kernels that can be planned."""

from __future__ import annotations

import functools

from common import schedule
from common.hardware import Hardware
from kernels.adaln_quant.bench import measure as adaln_measure
from kernels.adaln_quant.bench import shapes as adaln_shapes
from kernels.mla_decode import plan as mla_plan
from kernels.mla_decode.bench import measure as mla_measure
from kernels.mla_decode.device.config import Schedule
from kernels.mla_decode.planning.dims import Dims as MlaDims
from kernels.qkv_cte import plan as qkv_plan
from kernels.qkv_cte.bench import measure as qkv_measure
from kernels.qkv_cte.bench import shapes as qkv_shapes
from kernels.qkv_cte.planning import policy
from kernels.qkv_cte.planning.dims import Dims as QkvDims
from tools.bench import predicted
from tools.plan.subject import Knob, Subject, Values


def _sizes(values: Values, *names: str) -> list[int]:
    """Values of knobs that always have one."""
    return [value for name in names if (value := values[name]) is not None]


def _flag(values: Values, name: str) -> bool:
    """A knob that is 0 or 1.

    Raises:
        ValueError: it is something else.
    """
    if values[name] not in (0, 1):
        raise ValueError(f"{name} is {values[name]}; accepted: 0 or 1")
    return bool(values[name])


def _plan_qkv(values: Values, hardware: Hardware) -> qkv_plan.Plan:
    batch, seqlen, hidden, width, lnc, bias = _sizes(values, "batch", "seqlen", "hidden", "width", "lnc", "bias-bytes")
    if batch * seqlen > qkv_shapes.TOKENS_LIMIT:
        raise ValueError(
            f"batch {batch:,} x seqlen {seqlen:,} are {batch * seqlen:,} tokens; accepted: up to "
            f"{qkv_shapes.TOKENS_LIMIT:,}"
        )
    dims = QkvDims(batch, seqlen, hidden, width, lnc, bias)
    if not _flag(values, "search"):
        forced = functools.partial(schedule.force, degree=values["degree"], resident_h_tiles=values["resident"])
        return qkv_plan.make(dims, hardware, forced)
    for name in ("degree", "resident"):
        if values[name] is not None:
            raise ValueError(f"{name} is {values[name]}; accepted with search: plan, it is what the search chooses")
    return policy.best(policy.seed(dims, hardware), time_of=_time_ns)


def _time_ns(planned: qkv_plan.Plan) -> float:
    return predicted.timeline(qkv_measure.run(planned).cores, planned.hardware).total_ns


def _qkv_chosen(planned: qkv_plan.Plan) -> dict[str, int | str]:
    chosen = planned.schedule
    return {
        "degree": chosen.degree,
        "banks/group": chosen.banks_per_group,
        "I-groups": chosen.num_i_groups,
        "S-blocks": len(chosen.blocks),
        "resident": chosen.resident_h_tiles,
        "prefetch": chosen.prefetch,
        "policy": planned.policy,
    }


QKV_CTE = Subject(
    name="qkv_cte",
    help="the QKV projection of the Wan2.2 DiT",
    target="trn3",
    knobs=(
        Knob("batch", 1, 1, "sequences", size=True),
        Knob("seqlen", 9452, 1, "tokens per sequence, over all cores", size=True),
        Knob("hidden", 5120, 1, "columns of an activation row, H", size=True),
        Knob("width", 3840, 1, "output columns, I", size=True),
        Knob("lnc", 2, 1, "cores", size=True),
        Knob("bias-bytes", 2, 0, "bytes of a bias element: 0 for none, 2 or 4", size=True),
        Knob("degree", None, 1, "S-tiles (128 tokens) at once"),
        Knob("resident", None, 0, "H-tiles (512 rows) of weights kept in SBUF"),
        Knob("search", 0, 0, "0: plan by the fixed rule; 1: search for the least predicted time"),
    ),
    plan=_plan_qkv,
    simulate=lambda planned: qkv_measure.run(planned).cores,
    chosen=_qkv_chosen,
)


def _plan_mla(values: Values, hardware: Hardware) -> mla_plan.Plan:
    tokens, heads, keys, latent, hidden, lnc = _sizes(values, "tokens", "heads", "keys", "latent", "hidden", "lnc")
    dims = MlaDims(tokens, heads, keys, kv_lora_rank=latent, hidden=hidden, cores=lnc)
    flags = ("head-major", "latent-bands", "per-token-tails", "stationary-weights", "late-weighted-sum")
    other = Schedule(**{name.replace("-", "_"): _flag(values, name) for name in flags})
    return mla_plan.make(dims, hardware, values["dma-chunks"], group_tokens=values["group"], schedule=other)


def _mla_chosen(planned: mla_plan.Plan) -> dict[str, int | str]:
    return {
        "group": planned.group_tokens,
        "key buffers": planned.key_buffers,
        "DMA chunks": planned.dma_transposed_chunks,
        "o-proj columns": planned.pass_columns,
    }


MLA_DECODE = Subject(
    name="mla_decode",
    help="sparse MLA decode attention of DeepSeek-V3.2",
    target="trn2",
    knobs=(
        Knob("tokens", 16, 1, "tokens of the step, over all cores", size=True),
        Knob("heads", 1, 1, "heads of this rank", size=True),
        Knob("keys", 2048, 1, "selected keys per token", size=True),
        Knob("latent", 512, 1, "width of a cache row's latent field", size=True),
        Knob("hidden", 7168, 1, "output columns of the o-projection", size=True),
        Knob("lnc", 1, 1, "cores", size=True),
        Knob("dma-chunks", None, 0, "latent tiles transposed by DMA"),
        Knob("group", None, 1, "tokens that share a softmax"),
        Knob("head-major", 0, 0, "1: softmax with heads on partitions"),
        Knob("latent-bands", 0, 0, "1: latent tiles on 32-partition bands"),
        Knob("per-token-tails", 0, 0, "1: out-absorb and o-projection per token"),
        Knob("stationary-weights", 0, 0, "1: softmax weights stationary in the weighted sum"),
        Knob("late-weighted-sum", 0, 0, "1: weighted sums after the next group's first scores"),
    ),
    plan=_plan_mla,
    simulate=lambda planned: mla_measure.run_without_values(planned).cores,
    chosen=_mla_chosen,
)

_MODULATIONS = tuple(adaln_shapes.Modulation)


def _plan_adaln(values: Values, hardware: Hardware) -> adaln_shapes.Plan:
    batch, seqlen, hidden, lnc, modulation = _sizes(values, "batch", "seqlen", "hidden", "lnc", "modulation")
    if modulation >= len(_MODULATIONS):
        raise ValueError(f"modulation is {modulation}; accepted: 0 to {len(_MODULATIONS) - 1}")
    return adaln_shapes.own_case((batch, seqlen, hidden), _MODULATIONS[modulation], lnc).plan(hardware)


ADALN_QUANT = Subject(
    name="adaln_quant",
    help="AdaLN and row quantisation of the Wan2.2 DiT",
    target="trn3",
    knobs=(
        Knob("batch", 1, 1, "sequences", size=True),
        Knob("seqlen", 9452, 1, "tokens of each, over all cores", size=True),
        Knob("hidden", 5120, 1, "columns of an activation row, H", size=True),
        Knob("lnc", 2, 1, "cores", size=True),
        Knob("modulation", 1, 0, "0: none, 1: a vector per sequence, 2: one per token", size=True),
    ),
    plan=_plan_adaln,
    simulate=lambda planned: adaln_measure.run_without_values(planned).cores,
    chosen=lambda planned: {"S-tiles": planned.depth},
)

SUBJECTS = {subject.name: subject for subject in (QKV_CTE, MLA_DECODE, ADALN_QUANT)}
"""By the kernel's name."""

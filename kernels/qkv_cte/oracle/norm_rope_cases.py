"""Calls with across-heads norm and RoPE for the tests: one record each, and seeded operands for them."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any

import torch

from common import schedule
from common.hardware import TRN3
from common.row_mx import H_PACK, ROW_TAIL_BYTES
from kernels.qkv_cte.device.config import SEED_FLOW, Flow, NormRopePass
from kernels.qkv_cte.oracle import cases
from kernels.qkv_cte.oracle.cases import Case, Operands
from kernels.qkv_cte.planning import pass_plan, plan
from kernels.qkv_cte.planning.flow_plan import can_be_early
from kernels.qkv_cte.planning.plan import Plan

_CHANNEL_DTYPES = {2: torch.bfloat16, 4: torch.float32}

Groups = tuple[tuple[int, ...], ...] | None


@dataclass(frozen=True)
class NormRopeCase:
    """One call.

    Attributes:
        case: the projection.
        q_norm, k_norm, rope: what the pass does.
        gamma_dtype, cache_dtype: of their tensors.
        eps: added to the mean square.
        nbsd: layout of the output.
        groups: replica groups.
        flow: how the work is spread.
    """

    case: Case
    q_norm: bool = True
    k_norm: bool = True
    rope: bool = True
    gamma_dtype: torch.dtype = torch.float32
    cache_dtype: torch.dtype = torch.float32
    eps: float = 1e-6
    nbsd: bool = False
    groups: Groups = None
    flow: Flow = SEED_FLOW

    @property
    def name(self) -> str:
        """The projection's name and what is done to it."""
        done = [name for name in ("q_norm", "k_norm", "rope", "nbsd") if getattr(self, name)]
        if self.flow.early:
            done.append(f"early_kept_{self.flow.kept_tiles}")
        return "-".join([self.case.name, *done])

    @property
    def norm_rope(self) -> NormRopePass | None:
        """What the kernel is asked to do."""
        return pass_plan.make_pass(
            self.case.dims,
            num_heads=self.case.num_heads,
            num_kv_heads=self.case.num_kv_heads,
            head_dim=self.case.head_dim,
            q_gamma_bytes=self.gamma_dtype.itemsize if self.q_norm else 0,
            k_gamma_bytes=self.gamma_dtype.itemsize if self.k_norm and self.case.num_kv_heads else 0,
            cache_bytes=self.cache_dtype.itemsize if self.rope else 0,
            eps=self.eps,
            replica_groups=self.groups,
        )

    @property
    def plan(self) -> Plan:
        """The plan on trn3, with what the projection forces."""
        case = self.case
        forced = functools.partial(schedule.force, degree=case.degree, resident_h_tiles=case.resident_h_tiles)
        head_dim = case.head_dim if self.nbsd else 0
        return plan.make(case.dims, TRN3, forced, self.norm_rope, head_dim, self.flow)


CALLS = (
    NormRopeCase(Case("s_1", 1, 128, 2, "full", num_kv_heads=1, head_dim=32), rope=False),
    NormRopeCase(Case("s_127", 127, 128, 2, "full", num_kv_heads=1, head_dim=32)),
    NormRopeCase(Case("s_128", 128, 256, 3, "full", num_kv_heads=2, head_dim=32), rope=False),
    NormRopeCase(Case("s_129", 129, 128, 3, "full", num_kv_heads=2, head_dim=32), cache_dtype=torch.bfloat16),
    NormRopeCase(Case("s_255", 255, 128, 4, "full", num_kv_heads=4), gamma_dtype=torch.bfloat16),
    NormRopeCase(Case("s_257", 257, 640, 2, "full", num_kv_heads=3, degree=2, resident_h_tiles=1), eps=0.125),
    NormRopeCase(Case("lnc2", 516, 128, 3, "full", num_kv_heads=3, head_dim=64, lnc=2, degree=2)),
    NormRopeCase(Case("batch_3", 130, 128, 3, "full", num_kv_heads=2, head_dim=64, batch=3)),
    NormRopeCase(Case("batch_2_lnc2", 258, 128, 3, "full", num_kv_heads=2, head_dim=64, batch=2, lnc=2), rope=False),
    NormRopeCase(Case("single", 130, 128, 5, "full"), k_norm=False, rope=False),
    NormRopeCase(Case("single", 130, 128, 5, "full"), k_norm=False),
    NormRopeCase(Case("q_only", 130, 128, 3, "full", num_kv_heads=2), k_norm=False, rope=False),
    NormRopeCase(Case("q_only", 130, 128, 3, "full", num_kv_heads=2), k_norm=False),
    NormRopeCase(Case("k_only", 130, 128, 3, "full", num_kv_heads=2), q_norm=False),
    NormRopeCase(Case("rope_only", 130, 128, 3, "full", num_kv_heads=2), q_norm=False, k_norm=False),
    NormRopeCase(Case("single_v", 131, 128, 5, "full"), q_norm=False, k_norm=False, rope=False, nbsd=True),
    NormRopeCase(Case("single_nbsd", 258, 256, 5, "full", lnc=2), k_norm=False, rope=False, nbsd=True),
    NormRopeCase(Case("nbsd_batch", 130, 128, 3, "full", num_kv_heads=2, batch=2), nbsd=True),
    NormRopeCase(Case("wide", 3, 128, 40, "full"), k_norm=False, rope=False, nbsd=True),
    NormRopeCase(Case("no_bias", 129, 128, 2, "full", num_kv_heads=2, bias_dtype=None)),
)
"""Small, and each at an edge: ragged S-tiles, batches, cores, segments with and without norm, both layouts."""


def early(call: NormRopeCase, kept_tiles: int, pass_buffers: int = 2, scalar_every: int = 0) -> NormRopeCase:
    """The call with norm and RoPE in the evictions; `pass_buffers` only where rows are read again."""
    rereads = call.q_norm or call.k_norm
    kept = min(kept_tiles, call.case.dims.s_tiles) if rereads else 0
    loads = min(pass_buffers, call.case.dims.s_tiles - kept) if rereads else 0
    return dataclasses.replace(call, flow=Flow(True, kept, loads, scalar_every=scalar_every))


EARLY_CALLS = tuple(
    early(call, kept_tiles, 1 + index % 3, scalar_every=(index + kept_tiles) % 4)
    for index, call in enumerate(CALLS)
    if can_be_early(call.case.dims, call.norm_rope)
    for kept_tiles in (0, 1, 99)
)
"""The same with norm and RoPE in the evictions: no, one or all S-tiles kept, few and many evictions by Scalar."""


_SELF_TP4, _SELF_TP8, _CROSS_Q, _CROSS_K, _CROSS_V = cases.WAN22
WAN22 = (
    NormRopeCase(_SELF_TP4, gamma_dtype=torch.bfloat16, groups=((0, 1, 2, 3),)),
    NormRopeCase(_SELF_TP8, gamma_dtype=torch.bfloat16, groups=((0, 1, 2, 3, 4, 5, 6, 7),)),
    NormRopeCase(_CROSS_Q, k_norm=False, rope=False, nbsd=True),
    NormRopeCase(_CROSS_K, k_norm=False, rope=False, nbsd=True),
    NormRopeCase(_CROSS_V, q_norm=False, k_norm=False, rope=False, nbsd=True),
)
"""What Wan2.2 A14B calls, in its layouts and groups."""


@dataclass(frozen=True)
class NormRopeOperands:
    """Tensors of one call; None for what it does without.

    Attributes:
        projection: what the projection takes.
        q_gamma, k_gamma: [1, heads * head_dim].
        cos, sin: [B, S, head_dim].
    """

    projection: Operands
    q_gamma: torch.Tensor | None
    k_gamma: torch.Tensor | None
    cos: torch.Tensor | None
    sin: torch.Tensor | None

    def arguments(self, made: Plan) -> tuple[Any, ...]:
        """Positional arguments of the kernel."""
        return (*self.projection.tensors, made.config, self.q_gamma, self.k_gamma, self.cos, self.sin)


def normal_operands(call: NormRopeCase, seed: int = 0) -> NormRopeOperands:
    """Operands of order 1: gammas between 0.5 and 1.5, a random angle for each position and lane.

    By convention both halves of a cache are alike. Here they differ, so that two halves exchanged show.
    """
    case = call.case
    generator = torch.Generator().manual_seed(seed + 1)
    q_gamma, k_gamma = (
        (0.5 + torch.rand(1, heads * case.head_dim, generator=generator)).to(call.gamma_dtype) if wanted else None
        for heads, wanted in ((case.num_heads, call.q_norm), (case.num_kv_heads, call.k_norm and case.num_kv_heads))
    )
    cos = sin = None
    if call.rope:
        angles = 6.3 * torch.rand(case.batch, case.seqlen, case.head_dim, generator=generator)
        cos, sin = (f(angles).to(call.cache_dtype) for f in (torch.cos, torch.sin))
    return NormRopeOperands(cases.normal_operands(case, seed), q_gamma, k_gamma, cos, sin)


def without_values(made: Plan) -> tuple[Any, ...]:
    """Positional arguments of the kernel of a plan's sizes and dtypes that hold no data."""
    dims, norm_rope = made.dims, made.norm_rope
    empty = functools.partial(torch.empty, device="meta")
    gammas: dict[str, torch.Tensor] = {}
    caches: list[torch.Tensor | None] = [None, None]
    for segment in () if norm_rope is None else norm_rope.segments:
        if segment.gamma_bytes:
            gammas[segment.name] = empty(1, segment.width, dtype=_CHANNEL_DTYPES[segment.gamma_bytes])
    if norm_rope is not None and norm_rope.cache_bytes:
        shape = (dims.batch, dims.seqlen, norm_rope.head_dim)
        caches = [empty(shape, dtype=_CHANNEL_DTYPES[norm_rope.cache_bytes]) for _ in "cs"]
    return (
        empty(dims.batch, dims.seqlen, dims.hidden + ROW_TAIL_BYTES, dtype=torch.float8_e4m3fn),
        empty(dims.hidden // H_PACK, dims.width, H_PACK, dtype=torch.float8_e4m3fn),
        empty(1, dims.width, dtype=torch.float32),
        empty(1, dims.width, dtype=_CHANNEL_DTYPES[dims.bias_bytes]) if dims.bias_bytes else None,
        made.config,
        gammas.get("q"),
        gammas.get("k"),
        *caches,
    )

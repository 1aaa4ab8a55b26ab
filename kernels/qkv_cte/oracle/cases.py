"""The shapes that tests and bench run, one record each, and seeded operands for them."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from common import row_mx, schedule
from common.hardware import TRN3
from common.schedule import Prefetch
from kernels.qkv_cte.planning import plan
from kernels.qkv_cte.planning.dims import Dims
from kernels.qkv_cte.planning.plan import Plan


@dataclass(frozen=True)
class Case:
    """One call.

    Attributes:
        name: unique.
        seqlen: S over all cores.
        hidden: H.
        num_heads, num_kv_heads, head_dim: they give I.
        prefetch: what the plan must come out as on trn3.
        batch: B.
        lnc: cores.
        bias_dtype: None without a bias.
        degree, resident_h_tiles: forced on the schedule; None leaves the choice to the seed's rule.
    """

    name: str
    seqlen: int
    hidden: int
    num_heads: int
    prefetch: Prefetch
    num_kv_heads: int = 0
    head_dim: int = 128
    batch: int = 1
    lnc: int = 1
    bias_dtype: torch.dtype | None = torch.float32
    degree: int | None = None
    resident_h_tiles: int | None = None

    @property
    def width(self) -> int:
        """I, the output columns."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim

    @property
    def dims(self) -> Dims:
        """The sizes as the plan takes them."""
        bias_bytes = 0 if self.bias_dtype is None else self.bias_dtype.itemsize
        return Dims(self.batch, self.seqlen, self.hidden, self.width, self.lnc, bias_bytes)

    @property
    def plan(self) -> Plan:
        """The plan on trn3, with what is forced."""
        forced = functools.partial(schedule.force, degree=self.degree, resident_h_tiles=self.resident_h_tiles)
        return plan.make(self.dims, TRN3, forced)


CORNERS = (
    Case("one_token", 1, 512, 1, "full"),
    Case("s_127", 127, 512, 1, "full"),
    Case("s_128", 128, 512, 3, "full"),
    Case("s_129", 129, 512, 1, "full", num_kv_heads=1),
    Case("s_255", 255, 512, 2, "full", bias_dtype=torch.bfloat16),
    Case("s_257", 257, 512, 4, "full", bias_dtype=None),
    Case("s_2", 2, 512, 1, "full", lnc=2),
    Case("s_258_lnc2", 258, 640, 1, "full", lnc=2, num_kv_heads=2),
    Case("s_4726", 4726, 512, 1, "full", num_kv_heads=1),
    Case("batch_2", 130, 512, 4, "full", batch=2, lnc=2, bias_dtype=torch.bfloat16),
    Case("batch_3", 43, 512, 5, "full", batch=3),
    Case("h_128", 129, 128, 2, "full"),
    Case("h_256", 3, 256, 5, "full", num_kv_heads=2),
    Case("h_384", 129, 384, 1, "full", bias_dtype=None),
    Case("h_1152", 257, 1152, 6, "chunked", resident_h_tiles=0, degree=2),
    Case("h_2560", 129, 2560, 3, "full", num_kv_heads=1),
    Case("h_5120", 130, 5120, 1, "full", num_kv_heads=1, lnc=2),
    Case("i_1", 129, 512, 1, "full", head_dim=1),
    Case("i_511", 129, 512, 7, "full", head_dim=73),
    Case("i_513", 129, 512, 27, "full", head_dim=19),
    Case("i_4608", 257, 512, 12, "full", num_kv_heads=12, lnc=1, bias_dtype=torch.bfloat16),
    Case("i_15360", 3, 512, 40, "full", num_kv_heads=40),
    Case("chosen_chunked", 130, 1024, 40, "chunked", num_kv_heads=40),
    Case("chosen_graduated", 130, 1664, 40, "graduated", num_kv_heads=20),
    Case("degree_1", 257, 1152, 9, "chunked", degree=1, resident_h_tiles=0),
    Case("degree_2", 385, 1152, 9, "graduated", degree=2, resident_h_tiles=1),
    Case("degree_3", 513, 1152, 9, "graduated", degree=3, resident_h_tiles=2),
    Case("degree_4", 641, 1152, 9, "chunked", degree=4, resident_h_tiles=0),
    Case("degree_5", 769, 1152, 9, "full", degree=5, resident_h_tiles=3),
    Case("degree_6", 897, 1152, 9, "graduated", degree=6, resident_h_tiles=1),
    Case("degree_7", 1025, 1152, 9, "graduated", degree=7, resident_h_tiles=2),
    Case("degree_8", 1153, 1152, 9, "chunked", degree=8, resident_h_tiles=0),
    Case("short_last_block", 128 * 9 + 1, 640, 17, "graduated", degree=4, resident_h_tiles=1, head_dim=127),
    Case("degree_8_lnc2", 4096 + 2, 640, 9, "graduated", lnc=2, degree=8, resident_h_tiles=1),
)
"""Small, and each at an edge: ragged tiles on every axis, one token, every degree, every prefetch mode."""

WAN22 = (
    Case("self_tp4", 9452, 5120, 10, "full", num_kv_heads=10, lnc=2, bias_dtype=torch.bfloat16),
    Case("self_tp8", 9452, 5120, 5, "full", num_kv_heads=5, lnc=2, bias_dtype=torch.bfloat16),
    Case("cross_q", 1184, 5120, 40, "graduated", lnc=2, bias_dtype=torch.bfloat16),
    Case("cross_k", 512, 5120, 40, "graduated", lnc=2, bias_dtype=torch.bfloat16),
    Case("cross_v", 512, 5120, 40, "graduated", lnc=2, bias_dtype=torch.bfloat16),
)
"""The projections of Wan2.2 A14B at 720p x 81 frames and context parallel 8: 9,450 tokens padded to 9,452.

Keys and values of cross-attention come from 512 text tokens. Cross-attention holds every head on every
rank, and its queries are split over the ranks instead: 592 tokens per core.
"""

SUITES = {"corners": CORNERS, "wan22": WAN22}


def suite(name: str) -> tuple[Case, ...]:
    """The cases of a suite.

    Raises:
        ValueError: there is none of that name.
    """
    if name not in SUITES:
        raise ValueError(f"suite is {name!r}; accepted: {', '.join(SUITES)}")
    return SUITES[name]


@dataclass(frozen=True)
class Operands:
    """Tensors of one call, in the order in which kernel and reference take them.

    Attributes:
        packed_hidden: [B, S, H + 4] float8_e4m3fn.
        weight: [H / 4, I, 4] float8_e4m3fn.
        weight_scales: [1, I] float32.
        bias: [1, I] or None.
    """

    packed_hidden: torch.Tensor
    weight: torch.Tensor
    weight_scales: torch.Tensor
    bias: torch.Tensor | None

    @property
    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """All four, as positional arguments."""
        return self.packed_hidden, self.weight, self.weight_scales, self.bias


def normal_operands(case: Case, seed: int = 0) -> Operands:
    """Standard normal activations and weights of variance 1 / H, so that outputs are of order 1, as is the bias."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(case.batch, case.seqlen, case.hidden, generator=generator)
    codes, scales = row_mx.quantise_columns(torch.randn(case.hidden, case.width, generator=generator))
    bias = None
    if case.bias_dtype is not None:
        bias = torch.randn(1, case.width, generator=generator).to(case.bias_dtype)
    return Operands(row_mx.row_quantise_packed(x), row_mx.pack_weight(codes), scales / case.hidden**0.5, bias)


def distinct_operands(case: Case, seed: int = 0) -> Operands:
    """`normal_operands` with scales and bias of which no two are alike, so that no two can be swapped unseen.

    Row scales, column scales and bias follow `distinct_scales`, tiled as the kernel tiles them. The bias is about as
    large as the products of the rows of smallest scale: there it shows, and hides no row.
    """
    normal = normal_operands(case, seed)
    codes, _ = row_mx.unpack_rows(normal.packed_hidden)
    rows = distinct_scales(case.batch * case.seqlen, 128).reshape(case.batch, case.seqlen, 1)
    columns = distinct_scales(case.width, 512)[None, :]
    bias = None
    if case.bias_dtype is not None:
        bias = (columns.roll(1) * -(case.hidden**0.5)).to(case.bias_dtype)
    return Operands(row_mx.pack_rows(codes, rows), normal.weight, columns, bias)


def distinct_scales(count: int, tile_size: int) -> torch.Tensor:
    """Scales that differ pairwise by at least a part in 64: exponent `(k + 7n) mod 29 - 14` at place k of tile n.

    Neighbours in a tile and the same place of neighbouring tiles then differ by their exponent, which data of one
    magnitude never shows. Where an exponent comes back, the mantissa is the next 32nd.

    Raises:
        ValueError: `count` needs an exponent more than 32 times, which begins beyond 900.
    """
    seen = dict.fromkeys(range(29), 0)
    scales = []
    for index in range(count):
        exponent = (index % tile_size + 7 * (index // tile_size)) % 29
        if seen[exponent] == 32:
            raise ValueError(f"count is {count}; accepted: at most {index} in tiles of {tile_size}")
        scales.append(2.0 ** (exponent - 14) * (1 + seen[exponent] / 32))
        seen[exponent] += 1
    return torch.tensor(scales, dtype=torch.float32)

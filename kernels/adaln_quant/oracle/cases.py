"""The shapes that tests and bench run, one record each, and seeded operands for them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from common.hardware import TRN3, Hardware
from kernels.adaln_quant.oracle import reference
from kernels.adaln_quant.planning import plan
from kernels.adaln_quant.planning.dims import Dims, Modulation
from kernels.adaln_quant.planning.plan import Plan

BF16, FP32 = torch.bfloat16, torch.float32
NONE, BATCH, TOKEN = Modulation.none, Modulation.batch, Modulation.token

OUTLIER_CHANNELS = 3
OUTLIER_FACTOR = 50.0


@dataclass(frozen=True)
class Case:
    """One call.

    Attributes:
        name: unique.
        seqlen, hidden, batch: of x [B, S, H]; S over all cores.
        modulation: none is `row_quantize_packed`, the others `adaln_modulate`.
        dtype, modulation_dtype: of x, and of scale and shift.
        quantised: packed rows; else bfloat16.
        lnc: cores.
    """

    name: str
    seqlen: int
    hidden: int
    batch: int = 1
    modulation: Modulation = BATCH
    dtype: torch.dtype = BF16
    modulation_dtype: torch.dtype = FP32
    quantised: bool = True
    lnc: int = 1

    @property
    def dims(self) -> Dims:
        """The sizes as the plan takes them."""
        return Dims(
            batch=self.batch,
            seqlen=self.seqlen,
            hidden=self.hidden,
            cores=self.lnc,
            modulation=self.modulation,
            quantised=self.quantised,
            input_bytes=self.dtype.itemsize,
            modulation_bytes=0 if self.modulation is NONE else self.modulation_dtype.itemsize,
        )

    def plan(self, hardware: Hardware = TRN3) -> Plan:
        """The plan on a target."""
        return plan.make(self.dims, hardware)


CORNERS = (
    Case("one_token", 1, 512),
    Case("four_columns", 129, 4, dtype=FP32),
    Case("eight_columns", 3, 8, modulation=TOKEN),
    Case("s_127", 127, 640),
    Case("s_128", 128, 640, dtype=FP32),
    Case("s_129", 129, 640, modulation_dtype=BF16),
    Case("s_257_token", 257, 640, modulation=TOKEN, dtype=FP32),
    Case("h_508", 5, 508, batch=2),
    Case("h_516", 130, 516, batch=2, dtype=FP32, lnc=2),
    Case("h_1540", 258, 1540, lnc=2, modulation_dtype=BF16),
    Case("h_5120", 130, 5120, lnc=2),
    Case("h_5120_token", 4, 5120, batch=2, modulation=TOKEN, lnc=2),
    Case("h_5120_token_bf16", 3, 5120, modulation=TOKEN, modulation_dtype=BF16),
    Case("h_6820", 3, 6820, batch=3, dtype=FP32),
    Case("batch_5", 258, 132, batch=5, lnc=2),
    Case("bf16_out", 257, 640, quantised=False),
    Case("bf16_out_fp32_in", 130, 1540, batch=3, dtype=FP32, quantised=False, lnc=2),
    Case("bf16_out_token", 130, 516, modulation=TOKEN, quantised=False, lnc=2),
    Case("bf16_out_5120", 3, 5120, quantised=False),
    Case("rows_one", 1, 4, modulation=NONE),
    Case("rows_127", 127, 260, modulation=NONE, dtype=FP32),
    Case("rows_129", 129, 260, modulation=NONE),
    Case("rows_258_lnc2", 258, 512, batch=2, modulation=NONE, lnc=2),
    Case("rows_5120", 130, 5120, modulation=NONE, lnc=2),
    Case("rows_3456", 3, 3456, batch=3, modulation=NONE),
    Case("rows_13824", 2, 13824, modulation=NONE, lnc=2),
    Case("rows_13824_fp32", 2, 13824, modulation=NONE, dtype=FP32),
)
"""Small, and each at an edge: ragged tiles on every axis, one token, each modulation, type, result and core count."""

WAN22 = (
    Case("adaln", 9452, 5120, lnc=2),
    Case("adaln_bf16", 9452, 5120, lnc=2, quantised=False),
    Case("cross_norm", 1184, 5120, lnc=2),
    Case("text", 512, 5120, modulation=NONE, lnc=2),
    Case("attention_out", 9452, 5120, modulation=NONE, lnc=2),
    Case("mlp_tp4", 9452, 3456, modulation=NONE, lnc=2),
    Case("mlp_tp8", 9452, 1728, modulation=NONE, lnc=2),
    Case("mlp", 9452, 13824, modulation=NONE, lnc=2),
    Case("ti2v_adaln", 9452, 3072, modulation=TOKEN, lnc=2),
)
"""Wan2.2 A14B at 720p x 81 frames and context parallel 8, 9,450 tokens padded to 9,452; and one shape of TI2V 5B.

`adaln` precedes self-attention and MLP, `cross_norm` cross-attention, whose queries are split over the ranks. `text`,
`attention_out` and the MLP's activations are quantised as they are.
"""

SUITES = {"corners": CORNERS, "wan22": WAN22}


@dataclass(frozen=True)
class Operands:
    """Tensors of one call.

    Attributes:
        x: [B, S, H].
        scale, shift: as `Case.modulation` says; None without.
    """

    x: torch.Tensor
    scale: torch.Tensor | None
    shift: torch.Tensor | None

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Those that there are, in the kernels' order."""
        return tuple(tensor for tensor in (self.x, self.scale, self.shift) if tensor is not None)

    def exact(self, eps: float = 1e-6) -> torch.Tensor:
        """Rows before the last rounding, [B, S, H] float64."""
        if self.scale is None or self.shift is None:
            return self.x.to(torch.float64)
        return reference.adaln(self.x, self.scale, self.shift, eps)


def normal_operands(case: Case, seed: int = 0) -> Operands:
    """Normal rows of different means and deviations with outlier channels; modulation of order 1."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    rows = (case.batch, case.seqlen, case.hidden)
    x = normal(*rows) * torch.exp2(normal(*rows[:2], 1)) + normal(*rows[:2], 1)
    outliers = torch.randint(case.hidden, (OUTLIER_CHANNELS,), generator=generator)
    x[..., outliers] *= OUTLIER_FACTOR
    if case.modulation is NONE:
        return Operands(x.to(case.dtype), None, None)
    vectors = rows if case.modulation is TOKEN else (case.batch, case.hidden)
    scale, shift = (normal(*vectors).to(case.modulation_dtype) for _ in range(2))
    return Operands(x.to(case.dtype), scale, shift)

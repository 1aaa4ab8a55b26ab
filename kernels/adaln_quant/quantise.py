"""From fp32 or bf16 rows to fp8 codes with the row's scale behind them."""

import nki.isa as nisa
import nki.language as nl
from kernels.adaln_quant.buffers import QuantiseBuffers
from kernels.adaln_quant.config import INVERSE_SCALE, LARGEST, QUOTIENT, REMAINDER, SCALE
from nki.language import NkiTensor

FP8_MAX = 448.0
"""Largest float8_e4m3fn."""

MIN_SCALE = 1e-6
"""Smallest scale; that of a row of zeros."""


def quantise_rows(buffers: QuantiseBuffers, rows: NkiTensor, index: int) -> NkiTensor:
    """scale[s] = max(max_h |rows[s, h]| / 448, 1e-6);  codes[s, h] = fp8(rows[s, h] * (1 / scale[s])).

    No code needs clipping: |x| * (1 / scale) is at most 448 with three roundings of 2**-24 each, far below the 464 at
    which e4m3fn rounds past its largest number.

    Returns:
        [tokens, H / 4 + 1] words, a view of the packed buffer.
    """
    tokens, hidden = rows.shape
    scaling = buffers.scaling[index][0:tokens, :]
    # In place: the engine has to write somewhere what it takes the maximum of.
    nisa.activate2(
        dst=rows,
        op=nl.copy,
        data=rows,
        imm0=0.0,
        imm1=0.0,
        op0=nl.bypass,
        op1=nl.bypass,
        reduce_op=nl.abs_max,
        reduce_res=scaling[:, LARGEST : LARGEST + 1],
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )
    divide_by_448(scaling)
    scale, inverse = scaling[:, SCALE : SCALE + 1], scaling[:, INVERSE_SCALE : INVERSE_SCALE + 1]
    packed = buffers.packed[index][0:tokens, :]
    words = packed.shape[1]
    nisa.tensor_scalar(
        dst=scale,
        data=scaling[:, QUOTIENT : QUOTIENT + 1],
        op0=nl.abs,
        operand0=0.0,
        op1=nl.maximum,
        operand1=MIN_SCALE,
        engine=nisa.engine.vector,
    )
    nisa.reciprocal(dst=inverse, data=scale)
    nisa.tensor_copy(dst=packed[:, words - 1 : words], src=scale, engine=nisa.engine.gpsimd)
    codes = packed.view(nl.float8_e4m3fn)[:, 0:hidden]
    nisa.tensor_scalar(dst=codes, data=rows, op0=nl.multiply, operand0=inverse, engine=nisa.engine.scalar)
    return packed


def divide_by_448(scaling: NkiTensor) -> None:
    """QUOTIENT = LARGEST / 448, correctly rounded as a division is; the engines have none, and 1 / 448 is no fp32.

    q = a * fp32(1 / 448) is off by an ulp at most. What it leaves, a - 448 q, is exact in fp32 when taken as
    (a / 512 - q) + q / 8, which is that over 512: both subtractions are of numbers within a factor of two, and the
    factors are powers of two. Times 8 / 7 and added, it gives a / 448 with a single rounding that counts: a quotient
    by 7 is at least 1/14 ulp away from where rounding turns. Holds while a / 512 is normal; below, MIN_SCALE rules.
    """
    largest = scaling[:, LARGEST : LARGEST + 1]
    quotient = scaling[:, QUOTIENT : QUOTIENT + 1]
    remainder = scaling[:, REMAINDER : REMAINDER + 1]
    vector = nisa.engine.vector
    nisa.tensor_scalar(dst=quotient, data=largest, op0=nl.multiply, operand0=1.0 / FP8_MAX, engine=vector)
    nisa.tensor_scalar(
        dst=remainder,
        data=largest,
        op0=nl.multiply,
        operand0=1.0 / 512.0,
        op1=nl.subtract,
        operand1=quotient,
        engine=vector,
    )
    nisa.tensor_scalar(
        dst=remainder,
        data=quotient,
        op0=nl.multiply,
        operand0=1.0 / 8.0,
        op1=nl.add,
        operand1=remainder,
        engine=vector,
    )
    nisa.tensor_scalar(
        dst=quotient,
        data=remainder,
        op0=nl.multiply,
        operand0=8.0 / 7.0,
        op1=nl.add,
        operand1=quotient,
        engine=vector,
    )

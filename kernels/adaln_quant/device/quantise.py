"""From rows to fp8 codes with the row's scale behind them."""

import nki.isa as nisa
import nki.language as nl
from kernels.adaln_quant.device.buffers import QuantiseBuffers
from kernels.adaln_quant.device.config import INVERSE_SCALE, LARGEST, QUOTIENT, REMAINDER
from nki.language import NkiTensor

FP8_MAX = 448.0
"""Largest float8_e4m3fn."""

MIN_SCALE = 1e-6
"""Smallest scale; that of a row of zeros."""


def quantise_rows(buffers: QuantiseBuffers, rows: NkiTensor, index: int) -> NkiTensor:
    """Rows as they come, with no other work for the engines: each has a part.

    Returns:
        [tokens, H / 4 + 1] words, as `make_codes`.
    """
    largest = buffers.scaling[index][0 : rows.shape[0], LARGEST : LARGEST + 1]
    half = rows.shape[1] // 2
    folded = buffers.folded[index][0 : rows.shape[0], :]
    nisa.tensor_tensor(
        dst=folded, data1=rows[:, 0:half], data2=rows[:, half:], op=nl.abs_max, engine=nisa.engine.gpsimd
    )
    find_largest(folded, largest)
    return make_codes(buffers, rows, index, nisa.engine.vector)


def quantise_work(buffers: QuantiseBuffers, work: NkiTensor, index: int) -> NkiTensor:
    """Rows that Vector and GpSimd have made: the Scalar Engine does the rest.

    Returns:
        [tokens, H / 4 + 1] words, as `make_codes`.
    """
    find_largest(work, buffers.scaling[index][0 : work.shape[0], LARGEST : LARGEST + 1])
    return make_codes(buffers, work, index, nisa.engine.scalar)


def make_codes(buffers: QuantiseBuffers, rows: NkiTensor, index: int, engine: nisa.engine) -> NkiTensor:
    """scale[s] = max(|largest[s]| / 448, 1e-6);  codes[s, h] = fp8(rows[s, h] * (1 / scale[s])).

    No code needs clipping: |x| * (1 / scale) is at most 448 with three roundings of 2**-24 each, far below the 464 at
    which e4m3fn rounds past its largest number.

    `engine` makes the codes, Vector or Scalar.

    Returns:
        [tokens, H / 4 + 1] words, a view of the packed buffer.
    """
    tokens, hidden = rows.shape
    scaling = buffers.scaling[index][0:tokens, :]
    packed = buffers.packed[index][0:tokens, :]
    words = packed.shape[1]
    scale, inverse = packed[:, words - 1 : words], scaling[:, INVERSE_SCALE : INVERSE_SCALE + 1]
    divide_by_448(scaling)
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
    codes = packed.view(nl.float8_e4m3fn)[:, 0:hidden]
    nisa.tensor_scalar(dst=codes, data=rows, op0=nl.multiply, operand0=inverse, engine=engine)
    return packed


def find_largest(rows: NkiTensor, largest: NkiTensor) -> None:
    """largest[s] = the element of rows[s] of the largest magnitude, with its sign.

    The engine has to write what it takes the maximum of; it writes the rows where they are.
    """
    nisa.activate2(
        dst=rows,
        op=nl.copy,
        data=rows,
        imm0=0.0,
        imm1=0.0,
        op0=nl.bypass,
        op1=nl.bypass,
        reduce_op=nl.abs_max,
        reduce_res=largest,
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )


def divide_by_448(scaling: NkiTensor) -> None:
    """QUOTIENT = LARGEST / 448, rounded as a division rounds; the engines have none, and 1 / 448 is no fp32.

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

"""Block-scaled formats on trn3: quantisation, and products of packed operands."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fuzz import formats
from fuzz.operators import BY_NAME, UNINITIALIZED, Array, missing
from fuzz.oracle import Effect, Operand, Result, copied
from fuzz.session import Session
from fuzz.tensor_engine import product
from fuzz.view_model import ViewCall
from nkisim.dtypes import DType

_QUADRANT, _BLOCK_ROWS, _LANES = 32, 8, 4
_FP8 = ("float8_e4m3fn_x4", "float8_e5m2_x4")
_LARGEST = formats.FLOATS["float32"].largest


class Scaled(NamedTuple):
    """Packed elements and their scales, of which row `32 * quadrant + i` from `scale` on is that of 8 partitions."""

    data: Operand
    scale: Operand

    def matrix(self) -> Array:
        """The numbers, (4 * partitions, columns): row `lane * partitions + partition`. Beyond fp32 nothing is known."""
        words = np.ascontiguousarray(self.data.model.array).reshape(self.data.shape[0], -1)
        kind = formats.PACKED[self.data.dtype]
        if kind in formats.FLOATS:
            codes = words.view(np.uint8).reshape(*words.shape, _LANES)
            numbers = formats.of_codes(codes, kind)
        else:
            nibbles = words[..., None] >> (4 * np.arange(_LANES, dtype=np.uint16)) & 0xF
            numbers = np.where(nibbles & 8, -1.0, 1.0) * np.array(formats.FP4)[nibbles & 7]
        rows = _scale_rows(len(words))
        bytes_ = np.ascontiguousarray(self.scale.model.array).view(np.uint8).reshape(self.scale.shape[0], -1)
        scales = formats.of_e8m0(bytes_[rows]).repeat(_BLOCK_ROWS, axis=0)
        scaled = numbers * scales[..., None]
        scaled[np.abs(scaled) > _LARGEST] = np.nan
        return np.moveaxis(scaled, -1, 0).reshape(_LANES * len(words), -1)


def _scale_rows(partitions: int) -> Array:
    """Rows of a scale tile that hold scales, one for each block of partitions."""
    blocks = np.arange(partitions // _BLOCK_ROWS)
    return blocks // (_QUADRANT // _BLOCK_ROWS) * _QUADRANT + blocks % (_QUADRANT // _BLOCK_ROWS)


def _rows(operand: Operand, start: int, stop: int) -> Operand:
    calls = (*operand.calls, ViewCall("index", (slice(start, stop),)))
    model = operand.tensor.model(calls)
    assert model is not None
    return Operand(operand.tensor, calls, model)


def _loaded(session: Session, argument: str, partitions: int, columns: int, dtype: DType) -> Operand:
    """A new tile with an argument's bytes."""
    size = partitions * columns * dtype.itemsize
    have = session.tensors[argument].memory.size
    tile = session.tile((partitions, columns), dtype, "sbuf")
    source = session.part_of(argument, session.integer(0, (have - size) // 4) * 4, size, dtype)
    session.call("dma_copy", lambda: copied(tile, source, through_fp32=False), dst=tile, src=source)
    return tile


def _place(session: Session) -> tuple[int, int]:
    """Partitions of an operand, and the one that it starts from."""
    partitions = session.sample((32, 32, 64, 96, 128))
    starts = {32: (0, 32, 64, 96), 64: (0, 64)}.get(partitions, (0,))
    return partitions, session.sample(starts)


def _operand(session: Session, partitions: int, start: int, columns: int) -> Scaled:
    """Packed elements from an argument, or quantised on the way."""
    offset = session.sample((0, 4, 8, 12))
    if session.chance(4) and 4 * columns * (start + partitions) <= session.tensors["x_bfloat16"].shape[0]:
        data, scale = _quantized(session, partitions, start, columns, offset)
        return Scaled(data, scale)
    kind = BY_NAME[session.sample(formats.PACKED)]
    data = _rows(_loaded(session, "x_codes", start + partitions, columns, kind), start, start + partitions)
    scale_kind = BY_NAME[session.sample(("uint8", "float8_e8m0fnu"))]
    scale = _loaded(session, "x_scales", start + partitions, columns, scale_kind)
    return Scaled(data, _rows(scale, start + offset, start + partitions))


def _quantized(session: Session, partitions: int, start: int, columns: int, offset: int) -> tuple[Operand, Operand]:
    kind, stop = BY_NAME[session.sample(("float16", "bfloat16"))], start + partitions
    src = _rows(session.loaded(stop, 4 * columns, kind, dims=1), start, stop)
    dst = _rows(session.tile((stop, columns), BY_NAME[session.sample(_FP8)], "sbuf"), start, stop)
    tile = session.tile((stop, columns), BY_NAME["uint8"], "sbuf")
    scale = _rows(tile, start + offset, stop)

    def effect() -> Effect:
        if missing(src):
            return UNINITIALIZED
        codes, scales, free = _quantize(src.rows(), formats.PACKED[dst.dtype])
        words = np.ascontiguousarray(codes).view(np.uint32)[..., 0]
        bits, kept = np.array(scale.model.array), ~scale.unwritten()
        bits[~kept] = 0
        rows = _scale_rows(partitions)
        bits[rows], kept[rows] = scales, False
        unknown = np.zeros(scale.shape, np.bool_)
        unknown[rows] = free
        return [
            Result(dst, bits=words, free=free.repeat(_BLOCK_ROWS, axis=0)),
            Result(scale, bits=bits, kept=kept, free=unknown),
        ]

    session.call("quantize_mx", effect, dst=dst, src=src, dst_scale=scale)
    return dst, scale


def _quantize(values: Array, kind: str) -> tuple[Array, Array, Array]:
    """Codes (partitions, columns, lanes), scale bytes (blocks, columns), and blocks of which nothing is documented."""
    partitions, elements = values.shape
    blocks = values.reshape(partitions // _BLOCK_ROWS, _BLOCK_ROWS, elements // _LANES, _LANES)
    peaks = np.abs(blocks).max(axis=(1, 3))
    free = ~np.isfinite(peaks)
    largest = formats.FLOATS[kind].largest
    top = int(np.frexp(largest)[1])
    exponents = np.frexp(np.where(free | (peaks == 0), 2.0**-200, peaks))[1] - top
    scales = np.clip(exponents + 127, 0, 254)
    divisors = np.ldexp(1.0, np.maximum(scales, 1) - 127)[:, None, :, None]
    with np.errstate(invalid="ignore"):
        scaled = np.where(free[:, None, :, None], 0.0, blocks / divisors).clip(-largest, largest)
    codes = formats.codes_of(formats.rounded(scaled, kind), kind)
    nan = np.isnan(peaks)
    return codes.reshape(partitions, elements // _LANES, _LANES), np.where(nan, 255, scales), free


def quantize_mx(session: Session) -> None:
    """fp16 or bf16 to fp8, with scales in the layout of the quadrants."""
    if session.target == "trn2":
        return
    partitions, start = _place(session)
    _quantized(session, partitions, start, session.integer(1, 4), session.sample((0, 4, 8, 12)))


def nc_matmul_mx(session: Session) -> None:
    """Products of packed operands, also accumulating."""
    if session.target == "trn2" or not session.psum_left():
        return
    partitions, start = _place(session)
    rows, columns = 2 * session.integer(1, 8), session.integer(1, 16)
    stationary = _operand(session, partitions, start, rows)
    moving = _operand(session, partitions, start, columns)
    dst = session.result(rows, columns, (BY_NAME["float32"], BY_NAME["bfloat16"]), ("psum",))
    accumulate = session.sample((None, None, False, True))
    session.call(
        "nc_matmul_mx", lambda: product(dst, stationary.matrix(), moving.matrix(), accumulate),
        dst=dst, stationary=stationary.data, moving=moving.data, stationary_scale=stationary.scale,
        moving_scale=moving.scale, accumulate=repr(accumulate),
    )  # fmt: skip

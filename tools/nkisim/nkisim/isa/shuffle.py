"""Movement between the partitions of a quadrant, by the Vector Engine."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from nkisim import machine, memory
from nkisim.enums import engine as Engine
from nkisim.errors import ArgumentError, OutOfBoundsError, PartitionError, ShapeError
from nkisim.instruction import NkiInstruction
from nkisim.isa import rules
from nkisim.tensor import NkiTensor

QUADRANT = 32
KEEP = 255


def nc_stream_shuffle(dst: NkiTensor, src: NkiTensor, shuffle_mask: Any, name: str | None = None) -> NkiInstruction:
    """In each quadrant of 32 partitions, partition i of dst gets partition `shuffle_mask[i]` of src.

    Args:
        dst, src: tiles in SBUF or PSUM of one type with as many elements per partition; may be the same tile. With
            the partitions of the taller one rounded up to quadrants, 3 or 4 quadrants start at partition 0, 2 at 0
            or 64, 1 at any quadrant.
        shuffle_mask: 32 integers, each 0 to 31, or 255 to leave the partition as it is.

    Raises:
        WrongBufferError, DtypeError, ShapeError, PartitionError, ArgumentError, UninitializedReadError.
        OutOfBoundsError: the mask names a partition that src does not have.
    """
    call = "nisa.nc_stream_shuffle"
    core = machine.core(call)
    mask = _mask(call, shuffle_mask)
    try:
        key = (call, dst.signature, src.signature, mask)
    except AttributeError:
        rules.require_tensors(call, dst=dst, src=src)
        raise
    if key not in core.checked:
        _check_mask(call, mask)
        _check_shuffle(call, core, dst, src)
        _check_sources(call, mask, dst, src)
        core.checked.add(key)
    issued = core.emit("nc_stream_shuffle", Engine.vector, (dst.region,), (src.region,), name, mask)
    if core.numerics:
        _shuffle(call, dst, src, mask)
    return issued


def _mask(call: str, given: Any) -> tuple[int, ...]:
    try:
        return tuple(map(operator.index, given))
    except TypeError:
        raise _mask_error(call, given) from None


def _mask_error(call: str, given: Any) -> ArgumentError:
    return ArgumentError(f"{call}: shuffle_mask {given!r}; accepted: 32 integers from 0 to 31, or 255")


def _check_mask(call: str, mask: tuple[int, ...]) -> None:
    if len(mask) != QUADRANT or any(entry != KEEP and not 0 <= entry < QUADRANT for entry in mask):
        raise _mask_error(call, mask)


def _check_shuffle(call: str, core: machine.Core, dst: NkiTensor, src: NkiTensor) -> None:
    rules.writable(call, "dst", dst)
    quadrants = -(-max(dst.shape[0], src.shape[0]) // QUADRANT)
    for operand, tensor in (("dst", dst), ("src", src)):
        rules.tile(call, operand, tensor, core.hardware, rules.ON_CHIP)
        allowed = core.hardware.allowed_start_partitions(quadrants * QUADRANT)
        if tensor.start_partition not in allowed:
            raise PartitionError(
                f"{call}: {operand} starts at partition {tensor.start_partition} with {quadrants} quadrants active; "
                f"accepted: {', '.join(map(str, allowed))}"
            )
    rules.same_dtype(call, "dst", dst, "src", src)
    if dst.size // dst.shape[0] != src.size // src.shape[0]:
        raise ShapeError(
            f"{call}: dst {list(dst.shape)}, src {list(src.shape)}; accepted: the same number of elements per partition"
        )


def _sources(mask: tuple[int, ...], partitions: int) -> list[int]:
    """The partition of src that each partition of dst gets, or KEEP."""
    return [KEEP if mask[p % QUADRANT] == KEEP else p - p % QUADRANT + mask[p % QUADRANT] for p in range(partitions)]


def _check_sources(call: str, mask: tuple[int, ...], dst: NkiTensor, src: NkiTensor) -> None:
    for partition, source in enumerate(_sources(mask, dst.shape[0])):
        if source != KEEP and source >= src.shape[0]:
            raise OutOfBoundsError(
                f"{call}: shuffle_mask takes partition {source} of src for partition {partition} of dst; "
                f"accepted: below {src.shape[0]}, the partitions of src"
            )


def _shuffle(call: str, dst: NkiTensor, src: NkiTensor, mask: tuple[int, ...]) -> None:
    sources = np.array(_sources(mask, dst.shape[0]))
    moved = sources != KEEP
    read = np.zeros(src.shape, np.bool_)
    read[sources[moved]] = True
    present = np.broadcast_to(moved.reshape(-1, *[1] * (dst.ndim - 1)), dst.shape)
    bits = memory.read_bits(call, "src", src, chosen=read).arranged(lambda part: part[np.where(moved, sources, 0)])
    memory.write_bits(call, "dst", dst, bits._replace(present=present))

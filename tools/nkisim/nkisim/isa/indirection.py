"""Rules for operands whose columns an index chooses (`NkiTensor.indirect`)."""

from __future__ import annotations

from nkisim import dtypes
from nkisim.enums import engine as Engine
from nkisim.errors import DtypeError, EngineError, PartitionError, WrongBufferError
from nkisim.indirect import COLUMNS
from nkisim.isa import rules
from nkisim.tensor import NkiTensor


def check(call: str, chosen: Engine, dst: NkiTensor, operand: str, source: NkiTensor) -> None:
    """An instruction of the Vector, Scalar or GpSimd Engine gathers from its source or scatters into dst.

    The documentation asks this of tiles placed by hand; tiles placed automatically start at partition 0 here.

    Raises:
        PartitionError: an index starts outside a quadrant's first partition, or away from where its data starts.
        WrongBufferError: the Scalar Engine scatters into PSUM.
    """
    gathers, scatters = _by_columns(source), _by_columns(dst)
    if not gathers and not scatters:
        return
    if call == "nisa.tensor_copy" and chosen is Engine.gpsimd:
        raise EngineError(f"{call}: engine gpsimd with an indirect operand; accepted: vector or scalar")
    if scatters and chosen is Engine.scalar and dst.buffer is rules.PSUM:
        raise WrongBufferError(f"{call}: dst {dst.name} is scattered into psum by engine scalar; accepted: sbuf")
    if gathers:
        _check_starts(call, operand, source, operand, source.start_partition)
    if scatters:
        expected = source.start_partition if source.buffer is rules.SBUF else None
        if expected is None and gathers:
            expected = source.indirection.by.start_partition
        _check_starts(call, "dst", dst, operand, expected)


def check_no_addresses(call: str, dst: NkiTensor, data: NkiTensor) -> None:
    """Not with 32-bit integers, whose arithmetic on addresses has no such operands; the pattern is not documented.

    Raises:
        DtypeError: 32-bit integers come and go, by an index.
    """
    integers = (dtypes.int32, dtypes.uint32)
    if (_by_columns(dst) or _by_columns(data)) and dst.dtype in integers and data.dtype in integers:
        raise DtypeError(
            f"{call}: data {data.dtype}, dst {dst.dtype} with an operand made by indirect(); accepted: at most one "
            f"32-bit integer type, since address arithmetic takes no index"
        )


def _by_columns(tensor: NkiTensor) -> bool:
    return tensor.indirection is not None and tensor.indirection.kind == COLUMNS


def _check_starts(call: str, operand: str, tensor: NkiTensor, other: str, expected: int | None) -> None:
    start = tensor.indirection.by.start_partition
    what = f"{call}: the index of {operand} {tensor.name} starts at partition {start}"
    if start % 32:
        raise PartitionError(f"{what}; accepted: a multiple of 32")
    if expected is not None and start != expected:
        raise PartitionError(f"{what}, {other} at {expected}; accepted: the same")

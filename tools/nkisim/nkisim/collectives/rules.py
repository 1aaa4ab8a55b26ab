"""Rules that the collectives share."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from nkisim.enums import MemoryRegion
from nkisim.errors import ArgumentError, DtypeError, ShapeError, ViewError, WrongBufferError
from nkisim.isa import operands, rules
from nkisim.machine import Core
from nkisim.numerics.alu import Operator
from nkisim.tensor import NkiTensor

HBM_OR_SBUF = (*rules.HBM, rules.SBUF)
_SBUF_RANK = 2
_REDUCTIONS = ("add", "minimum", "maximum")


def tensors(call: str, operand: str, value: Any) -> tuple[NkiTensor, ...]:
    """A list of tensors as a tuple."""
    if not isinstance(value, (list, tuple)) or not value or not all(isinstance(t, NkiTensor) for t in value):
        raise ArgumentError(f"{call}: {operand} is {value!r}; accepted: a non-empty list of tensors")
    return tuple(value)


def single(call: str, operand: str, value: Any) -> NkiTensor:
    """The tensor of a list that holds just one."""
    found = tensors(call, operand, value)
    if len(found) != 1:
        raise ArgumentError(f"{call}: {operand} holds {len(found)} tensors; accepted: exactly one")
    return found[0]


def pairs(
    call: str,
    core: Core,
    srcs: Sequence[NkiTensor],
    dsts: Sequence[NkiTensor],
    accepted: tuple[MemoryRegion, ...] = HBM_OR_SBUF,
) -> None:
    """Sources and destinations: as many, in one kind of memory, of one type pair by pair; several only in HBM."""
    if len(srcs) != len(dsts):
        raise ArgumentError(f"{call}: {len(srcs)} srcs and {len(dsts)} dsts; accepted: the same number")
    for operand, group in (("srcs", srcs), ("dsts", dsts)):
        for index, tensor in enumerate(group):
            rules.buffer(call, f"{operand}[{index}]", tensor, accepted)
            if tensor.is_indirect():
                raise ViewError(f"{call}: {operand}[{index}] has a dynamic index; accepted: static views")
            rules.supported_dtype(call, f"{operand}[{index}]", tensor.dtype, core.hardware)
    everything = (*srcs, *dsts)
    one_memory(call, core, everything)
    if everything[0].buffer is rules.SBUF:
        _check_sbuf(call, srcs, everything)
    for index, (src, dst) in enumerate(zip(srcs, dsts, strict=True)):
        rules.writable(call, f"dsts[{index}]", dst)
        rules.same_dtype(call, f"dsts[{index}]", dst, f"srcs[{index}]", src)


def one_memory(call: str, core: Core, everything: Sequence[NkiTensor]) -> None:
    """SBUF and HBM are not mixed; with two cores, neither are private and shared HBM: see `nkisim.collectives`."""
    buffers = dict.fromkeys(tensor.buffer for tensor in everything)
    kinds = len(buffers) if core.launch.num_programs > 1 else len({b is rules.SBUF for b in buffers})
    if kinds > 1:
        names = ", ".join(b.value for b in buffers)
        raise WrongBufferError(f"{call}: tensors lie in {names}; accepted: all in one memory, SBUF or HBM")


def _check_sbuf(call: str, srcs: Sequence[NkiTensor], everything: Sequence[NkiTensor]) -> None:
    if len(srcs) > 1:
        raise ArgumentError(f"{call}: {len(srcs)} tensors in SBUF; accepted: one, several only in HBM")
    for tensor in everything:
        if len(tensor.shape) != _SBUF_RANK:
            raise ShapeError(
                f"{call}: {tensor.name} {list(tensor.shape)} in SBUF; accepted: a partition and one free dimension"
            )


def reduction(call: str, op: Any, srcs: Sequence[NkiTensor]) -> Operator:
    """The operator of a reduction, which packed types and block scales have not."""
    for index, src in enumerate(srcs):
        if src.dtype.kind in ("packed", "scale"):
            raise DtypeError(f"{call}: srcs[{index}] is {src.dtype}; accepted: types that can be reduced")
    return operands.operator_among(call, "op", op, _REDUCTIONS)


def same_shape(call: str, srcs: Sequence[NkiTensor], dsts: Sequence[NkiTensor]) -> None:
    """Every destination has its source's shape."""
    for index, (src, dst) in enumerate(zip(srcs, dsts, strict=True)):
        if src.shape != dst.shape:
            raise ShapeError(
                f"{call}: dsts[{index}] {list(dst.shape)}, srcs[{index}] {list(src.shape)}; accepted: the same shape"
            )


def divisible(call: str, srcs: Sequence[NkiTensor], parts: int) -> None:
    """The group's size divides dimension 0."""
    for index, src in enumerate(srcs):
        if src.shape[0] % parts:
            raise ShapeError(
                f"{call}: srcs[{index}] {list(src.shape)} on {parts} ranks; accepted: {parts} divides dimension 0"
            )


def split(
    call: str,
    whole: tuple[str, Sequence[NkiTensor]],
    part: tuple[str, Sequence[NkiTensor]],
    dim: int,
    parts: int,
) -> None:
    """Each `whole` is as its `part`, and `parts` times as large in dimension `dim`."""
    for index, (large, small) in enumerate(zip(whole[1], part[1], strict=True)):
        expected = list(small.shape)
        expected[dim] *= parts
        if list(large.shape) != expected:
            raise ShapeError(
                f"{call}: {whole[0]}[{index}] {list(large.shape)}, {part[0]}[{index}] {list(small.shape)} on {parts} "
                f"ranks along dimension {dim}; accepted: {whole[0]}[{index}] {expected}"
            )


def dimension(call: str, value: Any, accepted: tuple[int, ...]) -> int:
    """`collective_dim`, which must be one of those accepted."""
    if type(value) is not int or value not in accepted:
        raise ArgumentError(f"{call}: collective_dim {value!r}; accepted: {' or '.join(map(str, accepted))}")
    return value


def key(call: str, core: Core, tensors: Sequence[NkiTensor], *arguments: Hashable) -> Any:
    """What decides whether the rules of a call's tensors hold; see `Core.checked`."""
    return call, core.launch.num_programs, tuple(t.signature for t in tensors), arguments

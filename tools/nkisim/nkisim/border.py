"""The border between a caller's arrays and a kernel's HBM tensors.

Arguments share the caller's memory until the kernel writes to them; then they are copies, which go back to the
caller only after the run has succeeded.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container
from typing import Any, NoReturn

import numpy as np
import torch

from common.hardware import Hardware
from nkisim import views
from nkisim.dtypes import DType, as_dtype
from nkisim.enums import MemoryRegion
from nkisim.errors import DtypeError, LaunchError, OutputNotWrittenError, ShapeError
from nkisim.isa import rules
from nkisim.options import Options
from nkisim.precision import storage_of
from nkisim.storage import Allocation, Storage
from nkisim.tensor import NkiTensor

_SHARING_WORK = 1_000_000
"""Candidate solutions that are tried before two arrays count as sharing memory."""


def bind(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> inspect.BoundArguments:
    """The call's arguments by parameter, defaults included, so that none shifts into the place of another.

    Raises:
        LaunchError: one is missing, unknown or given twice.
    """
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        name = getattr(function, "__name__", "kernel")
        raise LaunchError(f"{name}: {error}; it takes {inspect.signature(function)}") from None
    bound.apply_defaults()
    return bound


class Arguments:
    """A call's arguments with every array as an HBM tensor.

    Attributes:
        positional, named: what the kernel function is called with.
    """

    def __init__(self, bound: inspect.BoundArguments, hardware: Hardware, options: Options) -> None:
        self._hardware = hardware
        self._options = options
        self._torch = False
        self._given: dict[int, tuple[Any, NkiTensor]] = {}
        self.positional: tuple[Any, ...] = ()
        self.named: dict[str, Any] = {}
        parameters = bound.signature.parameters
        for name, value in bound.arguments.items():
            match parameters[name].kind:
                case inspect.Parameter.VAR_POSITIONAL:
                    self.positional += tuple(self._wrap(f"{name}[{i}]", v) for i, v in enumerate(value))
                case inspect.Parameter.VAR_KEYWORD:
                    self.named.update({k: self._wrap(k, v) for k, v in value.items()})
                case inspect.Parameter.KEYWORD_ONLY:
                    self.named[name] = self._wrap(name, value)
                case _:
                    self.positional += (self._wrap(name, value),)

    def check_written(self) -> None:
        """What the kernel wrote to can go back to the caller.

        Raises:
            OutputNotWrittenError: an argument was left with elements that nothing has written.
            LaunchError: an argument is read-only, or shares memory with another one, which saw nothing of the writes.
        """
        for tensor, array in self.written():
            _require_complete("argument", tensor)
            name = tensor.name
            if not _writable(array):
                raise LaunchError(
                    f"argument {name} is read-only, and the kernel writes to it; accepted: a writable array"
                )
            other = next((t for a, t in self._given.values() if a is not array and _share(a, array)), None)
            if other is not None:
                raise LaunchError(
                    f"argument {name} shares memory with argument {other.name}, and the kernel writes to it; accepted: "
                    f"the same array for both, or separate arrays"
                )

    def outputs(self, returned: Any, own: Container[int]) -> Any:
        """What the kernel returned, with tensors as arrays: torch tensors if any argument was one, else numpy.

        Args:
            own: identities of the launch's allocations.

        Raises:
            OutputNotWrittenError: an element of a returned tensor was never written.
            LaunchError: a tensor of another launch, or one on-chip.
        """
        if isinstance(returned, NkiTensor):
            if id(returned.storage.allocation) not in own:
                refuse_foreign(returned.storage.allocation, "the kernel's return")
            return self._output(returned)
        if isinstance(returned, tuple) and hasattr(returned, "_fields"):
            return type(returned)(*(self.outputs(item, own) for item in returned))
        if isinstance(returned, (list, tuple)):
            return type(returned)(self.outputs(item, own) for item in returned)
        if isinstance(returned, dict):
            return {key: self.outputs(item, own) for key, item in returned.items()}
        return returned

    def commit(self) -> None:
        """Copies what the kernel wrote to its arguments back to the caller's arrays."""
        for tensor, array in self.written():
            values = tensor.array()
            if _is_torch(array):
                array.detach().copy_(_to_torch(values, tensor.dtype, array.dtype))
            else:
                np.copyto(array, values.reshape(array.shape))

    def written(self) -> list[tuple[NkiTensor, Any]]:
        """Arguments that the kernel wrote to, with the caller's arrays."""
        return [(t, a) for a, t in self._given.values() if t.storage.is_private and t.storage.raw is not None]

    def holds(self, array: Any) -> bool:
        """Whether this array was given, or one that shares memory with it."""
        return id(array) in self._given or any(_share(array, given) for given, _ in self._given.values())

    @property
    def storages(self) -> list[Storage]:
        """What is behind the tensors that the arguments became."""
        return [tensor.storage for _, tensor in self._given.values()]

    def _wrap(self, name: str, value: Any) -> Any:
        if isinstance(value, np.ndarray) or _is_torch(value):
            known = self._given.get(id(value))
            if known is None:
                self._torch = self._torch or _is_torch(value)
                known = self._given[id(value)] = (value, self._tensor(name, value))
            return known[1]
        if type(value) in (list, tuple):
            return type(value)(self._wrap(f"{name}[{i}]", v) for i, v in enumerate(value))
        if type(value) is dict:
            return {k: self._wrap(f"{name}[{k!r}]", v) for k, v in value.items()}
        return value

    def _tensor(self, name: str, value: Any) -> NkiTensor:
        _check_plain(name, value)
        shape = tuple(int(s) for s in value.shape)
        try:
            dtype = as_dtype(value.dtype)
        except DtypeError:
            raise DtypeError(f"argument {name}: dtype {value.dtype} is not an NKI data type") from None
        rules.supported_dtype("launch", f"argument {name}", dtype, self._hardware)
        if not shape or 0 in shape:
            raise ShapeError(f"argument {name}: shape {shape}; accepted: at least one dimension, none of size 0")
        elements = int(np.prod(shape))
        allocation = Allocation(
            -len(self._given) - 1,
            name,
            MemoryRegion.shared_hbm,
            shape,
            dtype,
            1,
            elements * dtype.itemsize,
            None,
            None,
        )
        raw = _bytes_of(name, value) if self._options.numerics else None
        storage = storage_of(allocation, self._options)(allocation, raw, written=True)
        return NkiTensor(shape, dtype, storage, MemoryRegion.shared_hbm)

    def _output(self, tensor: NkiTensor) -> Any:
        for array, given in self._given.values():
            if given.storage is tensor.storage and given.region == tensor.region:
                return array
        if tensor.on_chip:
            raise LaunchError(f"the kernel returns {tensor.name}, which lies in {tensor.buffer!r}; accepted: HBM")
        _require_complete("output", tensor)
        values = np.array(tensor.array(), order="C")
        return _to_torch(values, tensor.dtype) if self._torch else values


def _require_complete(what: str, tensor: NkiTensor) -> None:
    missing = tensor.storage.first_unwritten(tensor.region)
    if missing is not None:
        raise OutputNotWrittenError(
            f"{what} {tensor.name} {list(tensor.shape)}: element {list(missing)} was never written"
        )


def refuse_foreign(allocation: Allocation, user: str) -> NoReturn:
    """A tensor is used that this launch's core did not make."""
    made = f" at {allocation.site}" if allocation.site else ""
    raise LaunchError(
        f"{allocation.name} {list(allocation.shape)}, made{made} in another launch or by another core, is used by "
        f"{user}; accepted: arguments, constants, and tensors that the core made itself in this launch"
    )


def commit_all(ranks: list[Arguments]) -> None:
    """Copies what several ranks wrote to their arguments back to the caller.

    Raises:
        LaunchError: two ranks were given the same array, or ones that share memory, and one of them wrote to it.
    """
    for number, arguments in enumerate(ranks):
        for tensor, array in arguments.written():
            other = next((n for n, a in enumerate(ranks) if n != number and a.holds(array)), None)
            if other is not None:
                raise LaunchError(
                    f"argument {tensor.name} is one array on ranks {number} and {other}, and rank {number} writes to "
                    f"it; accepted: a separate array for each rank"
                )
    for arguments in ranks:
        arguments.commit()


class _Bytes:
    """The bytes of an array or a CPU tensor, as numpy takes them."""

    def __init__(self, value: Any) -> None:
        if _is_torch(value):
            size = value.element_size()
            place, strides = value.data_ptr(), [s * size for s in value.stride()]
        else:
            size = value.itemsize
            place, strides = value.__array_interface__["data"][0], list(value.strides)
        self.__array_interface__ = {
            "data": (place, True),
            "shape": (*value.shape, size),
            "strides": (*strides, 1),
            "typestr": "|u1",
            "version": 3,
        }


def _share(a: Any, b: Any) -> bool:
    """Whether two arrays have bytes in common; True also where that takes too long to find out."""
    if any(_is_torch(value) and value.device.type != "cpu" for value in (a, b)):
        return False
    try:
        return np.shares_memory(np.asarray(_Bytes(a)), np.asarray(_Bytes(b)), max_work=_SHARING_WORK)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def _writable(array: Any) -> bool:
    """Whether values can be put into it: a tensor that `expand` made has several elements in one place."""
    if _is_torch(array):
        return not views.overlaps_itself(tuple(array.shape), tuple(array.stride()))
    return bool(array.flags.writeable)


def same_result(first: Any, other: Any) -> bool:
    """Whether two cores return the same: the same view of shared HBM, or views and values that are equal."""
    if isinstance(first, NkiTensor) and isinstance(other, NkiTensor):
        if (first.shape, first.dtype) != (other.shape, other.dtype):
            return False
        if first.storage is other.storage:
            return (first.offset, first.strides) == (other.offset, other.strides)
        return first.storage.raw is None or first.array().tobytes() == other.array().tobytes()
    if type(first) is not type(other):
        return False
    if isinstance(first, (list, tuple)):
        return len(first) == len(other) and all(map(same_result, first, other))
    if isinstance(first, dict):
        return first.keys() == other.keys() and all(same_result(first[key], other[key]) for key in first)
    return bool(first is other or first == other)


def _is_torch(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _check_plain(name: str, value: Any) -> None:
    """Its elements are one run of memory with strides, and all of them count."""
    if isinstance(value, np.ma.MaskedArray):
        raise LaunchError(f"argument {name}: a masked array; accepted: a plain one, such as its filled(...)")
    if _is_torch(value) and (value.layout is not torch.strided or value.is_nested):
        kind = "nested tensor" if value.is_nested else f"tensor of layout {value.layout}"
        raise LaunchError(f"argument {name}: a {kind}; accepted: a dense one")


def _bytes_of(name: str, value: Any) -> np.ndarray:
    """The array's bytes, flat; shared with the caller where it is dense."""
    if not _is_torch(value):
        return np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    if value.device.type != "cpu":
        raise LaunchError(f"argument {name}: a tensor on {value.device}; accepted: cpu (meta in a timing-only run)")
    flat: np.ndarray = value.detach().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy()
    return flat


def _to_torch(values: np.ndarray, dtype: DType, like: Any = None) -> Any:
    """A torch tensor with the array's bits; packed types, which torch has not, come as their integer words."""
    wanted = like if like is not None else getattr(torch, "bool" if dtype == "bool" else str(dtype), None)
    if wanted is None:
        return torch.from_numpy(values) if values.dtype.kind in "biufc" else torch.from_numpy(values.view(np.uint8))
    flat = torch.from_numpy(np.ascontiguousarray(values).reshape(-1).view(np.uint8))
    return flat.view(wanted).reshape(values.shape)

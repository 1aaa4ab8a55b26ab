"""The data types of NKI.

A `DType` is its documented name as a string, so that numpy understands it (`np.dtype(nl.bfloat16)`), with what the
simulator needs to know beside it. Packed types hold four elements in one word and have no arithmetic of their own.
"""

from __future__ import annotations

from typing import Any, Self

import ml_dtypes
import numpy as np

from nkisim.errors import DtypeError


class DType(str):
    """One data type: its name, its width and the numpy type that stores it.

    Attributes:
        itemsize: bytes of one element as `shape` counts them (a packed word for packed types).
        storage: numpy dtype of the stored bits.
        kind: "float", "integer", "boolean", "packed" or "scale".
        lane: for packed types, the type of each of the four elements; otherwise None.
    """

    itemsize: int
    storage: np.dtype[Any]
    kind: str
    lane: DType | None

    def __new__(cls, name: str, storage: Any, kind: str, lane: DType | None = None) -> Self:
        """A type of this name, stored as `storage`."""
        self = super().__new__(cls, name)
        self.storage = np.dtype(storage)
        self.itemsize = self.storage.itemsize
        self.kind = kind
        self.lane = lane
        return self

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, str):
            return str.__eq__(self, other)
        if isinstance(other, type) and issubclass(other, np.generic):
            return self.kind != "packed" and self.storage == np.dtype(other)
        return NotImplemented

    def __ne__(self, other: object) -> bool:
        equal = self.__eq__(other)
        return NotImplemented if equal is NotImplemented else not equal

    __hash__ = str.__hash__

    def __repr__(self) -> str:
        return str.__str__(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return as_dtype, (str(self),)

    @property
    def is_float(self) -> bool:
        """Whether arithmetic on it is floating point."""
        return self.kind == "float"


bool_ = DType("bool", np.bool_, "boolean")
int8 = DType("int8", np.int8, "integer")
int16 = DType("int16", np.int16, "integer")
int32 = DType("int32", np.int32, "integer")
uint8 = DType("uint8", np.uint8, "integer")
uint16 = DType("uint16", np.uint16, "integer")
uint32 = DType("uint32", np.uint32, "integer")
float16 = DType("float16", np.float16, "float")
float32 = DType("float32", np.float32, "float")
bfloat16 = DType("bfloat16", ml_dtypes.bfloat16, "float")
tfloat32 = DType("tfloat32", np.float32, "float")
float8_e4m3 = DType("float8_e4m3", ml_dtypes.float8_e4m3, "float")
float8_e4m3fn = DType("float8_e4m3fn", ml_dtypes.float8_e4m3fn, "float")
float8_e5m2 = DType("float8_e5m2", ml_dtypes.float8_e5m2, "float")
float8_e8m0fnu = DType("float8_e8m0fnu", ml_dtypes.float8_e8m0fnu, "scale")
float4_e2m1fn = DType("float4_e2m1fn", ml_dtypes.float4_e2m1fn, "float")
float8_e5m2_x4 = DType("float8_e5m2_x4", np.uint32, "packed", float8_e5m2)
float8_e4m3fn_x4 = DType("float8_e4m3fn_x4", np.uint32, "packed", float8_e4m3fn)
float4_e2m1fn_x4 = DType("float4_e2m1fn_x4", np.uint16, "packed", float4_e2m1fn)

ALL = (
    bool_, int8, int16, int32, uint8, uint16, uint32, float16, float32, bfloat16, tfloat32,
    float8_e4m3, float8_e4m3fn, float8_e5m2, float8_e8m0fnu, float8_e5m2_x4, float8_e4m3fn_x4, float4_e2m1fn_x4,
)  # fmt: skip
"""The documented types; `float4_e2m1fn` exists only as a lane."""

MX_DATA = (float8_e5m2_x4, float8_e4m3fn_x4, float4_e2m1fn_x4)
MX_SCALE = (float8_e8m0fnu, uint8)

_BY_NAME: dict[str, DType] = {str(d): d for d in ALL} | {"bool_": bool_}
_BY_STORAGE: dict[Any, DType] = {d.storage: d for d in ALL if d.lane is None and d is not tfloat32}
_KNOWN: dict[Any, DType] = {}


def as_dtype(value: Any) -> DType:
    """The `DType` that `value` names: one of ours, its name, or a numpy or torch type.

    Raises:
        DtypeError: `value` names no NKI type.
    """
    if type(value) is DType:
        return value
    try:
        return _KNOWN[value]
    except (KeyError, TypeError):
        pass
    found = _BY_NAME.get(str(value).removeprefix("torch.")) if isinstance(value, str) or _is_torch(value) else None
    if found is None and not isinstance(value, str):
        try:
            found = _BY_STORAGE.get(np.dtype(value))
        except (TypeError, ValueError):
            found = None
    if found is None:
        raise DtypeError(f"{value!r} is not an NKI data type; accepted: {', '.join(ALL)}")
    _KNOWN[value] = found
    return found


def _is_torch(value: Any) -> bool:
    return type(value).__module__ == "torch"

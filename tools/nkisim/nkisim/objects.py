"""`NKIObject`, the base class of classes that kernels may use."""

from __future__ import annotations

import functools
import inspect
from typing import Any


class NKIObject:
    """Base class for the simple classes that the NKI language knows.

    A subclass takes its annotated fields by position or keyword and any other class attribute by keyword. A field
    that is not given keeps its class default, or stays None where there is none. `__post_init__` runs last.
    With or without `@dataclass`, frozen or not: a subclass that brings no `__init__` of its own gets this one,
    and `@dataclass` leaves it in place.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" not in cls.__dict__ and not getattr(cls, "_keeps_init", False):
            cls.__init__ = _initialise  # type: ignore[method-assign,assignment]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _initialise(self, *args, **kwargs)

    def __post_init__(self) -> None:
        """Nothing to do unless a subclass says so."""


@functools.lru_cache(maxsize=1024)
def _fields(cls: type) -> list[str]:
    names: dict[str, None] = {}
    for base in reversed(cls.__mro__):
        names.update(dict.fromkeys(inspect.get_annotations(base)))
    return list(names)


def _initialise(self: Any, *args: Any, **kwargs: Any) -> None:
    cls: Any = type(self)
    fields = _fields(cls)
    if len(args) > len(fields):
        raise TypeError(f"{cls.__name__} takes {len(fields)} fields ({', '.join(fields)}), {len(args)} were given")
    given = dict(zip(fields, args, strict=False))
    for name, value in kwargs.items():
        if name in given:
            raise TypeError(f"{cls.__name__}: field {name!r} is given twice")
        if name not in fields and not hasattr(cls, name):
            raise TypeError(f"{cls.__name__} has no field {name!r}; it has {', '.join(fields)}")
        given[name] = value
    for name in fields:
        value = given.pop(name) if name in given else _default(cls, name)
        object.__setattr__(self, name, value)
    for name, value in given.items():
        object.__setattr__(self, name, value)
    self.__post_init__()


def _default(cls: type, name: str) -> Any:
    """A dataclass keeps `field(default_factory=...)` in its own table and drops the class attribute."""
    for field in getattr(cls, "__dataclass_fields__", {}).values():
        if field.name == name and callable(field.default_factory):
            return field.default_factory()
    return getattr(cls, name, None)

"""What the functions that users call have in common: a record of arguments, checks that make a plan, and a kernel."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kernels.qkv_cte.planning.plan import Plan


@dataclass(frozen=True)
class PreparedCall:
    """A checked call.

    Attributes:
        plan: how it runs.
        tensors: the kernel's arguments by name, but `config`.
    """

    plan: Plan
    tensors: dict[str, Any]

    @property
    def operands(self) -> dict[str, Any]:
        """All of the kernel's arguments by name."""
        return {"config": self.plan.config, **self.tensors}


@dataclass(frozen=True)
class Entry:
    """A function that users call.

    Attributes:
        name: of the function and of its op; with `_ranks` behind it, of the function for all ranks at once.
        record: class of its arguments, with `activations`, `output_like` and `replica_groups`.
        prepare: from a record, `target` and `lnc` to a checked call.
        kernel: what runs it.
        written: arguments that it writes to.
    """

    name: str
    record: type[Any]
    prepare: Callable[..., PreparedCall]
    kernel: Any
    written: tuple[str, ...] = ()

    @functools.cached_property
    def types(self) -> dict[str, Any]:
        """Type of each argument by its name."""
        return typing.get_type_hints(self.record)

    @functools.cached_property
    def required(self) -> tuple[str, ...]:
        """Arguments without a default. As `types`, found when the op is defined: torch cannot trace how."""
        fields = dataclasses.fields(self.record)
        return tuple(field.name for field in fields if field.default is dataclasses.MISSING)

    def arguments(self, given: Mapping[str, Any]) -> Any:
        """The record of arguments given by name.

        Raises:
            TypeError: the function has no argument of a name, or one is missing.
        """
        for name in given:
            if name not in self.types:
                raise TypeError(f"{self.name} has no argument {name!r}; accepted: {', '.join(self.types)}")
        for name in self.required:
            if name not in given:
                raise TypeError(f"{self.name} is called without {name}; accepted: with {', '.join(self.required)}")
        return self.record(**given)

"""`VirtualRegister`: an integer that only the device knows."""

from __future__ import annotations

from typing import Any, NoReturn

from nkisim.errors import RegisterError
from nkisim.objects import NKIObject


class VirtualRegister(NKIObject):
    """A 32-bit integer in an engine's register, for dynamic addresses and loops.

    `while register:` loops until it holds 0. It is no Python integer: the device works out its value, so it takes
    part in no Python arithmetic.

    Attributes:
        state: its value; None before anything was moved or loaded into it, and in a timing-only run after a load.
        frozen: whether it is a loop variable, which nothing may write to.
    """

    __slots__ = ("frozen", "state")

    state: int | None
    frozen: bool

    def __init__(self, state: int | None = None, frozen: bool = False) -> None:
        """A register that holds `state`; kernels use `nisa.register_alloc`."""
        self.state, self.frozen = state, frozen

    def value(self, call: str) -> int:
        """What it holds.

        Raises:
            RegisterError: nothing was moved or loaded into it, or this is a timing-only run.
        """
        if self.state is None:
            raise RegisterError(
                f"{call}: the register's value is not known; accepted: a register that nisa.register_move or "
                f"nisa.register_load has set (a timing-only run loads no values)"
            )
        return self.state

    def __bool__(self) -> bool:
        return self.value("while register") != 0

    def __index__(self) -> NoReturn:
        raise RegisterError(
            "a register is used as a Python integer; only the device knows its value. Accepted: nl.dynamic_range, "
            "nl.fori_loop, nl.ds, an index, ap(scalar_offset=...), nisa.register_store"
        )

    __int__ = __index__

    def _arithmetic(self, other: Any) -> NoReturn:
        raise RegisterError(
            "Python arithmetic with a register; accepted: nisa.register_store and arithmetic on the stored tile"
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __floordiv__ = __mod__ = _arithmetic
    __lt__ = __le__ = __gt__ = __ge__ = _arithmetic

    def __eq__(self, other: object) -> bool:
        if other is not self and isinstance(other, (int, float, VirtualRegister)):
            self._arithmetic(other)
        return other is self

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"<register: {'unknown' if self.state is None else self.state}>"

"""Names of `nki.language` that are operators and nothing else."""

from __future__ import annotations

from typing import Any, NoReturn

from nkisim.errors import ArgumentError


class Token:
    """An operator that instructions take as `op` and that cannot be called."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Always an error.

        Raises:
            ArgumentError: the operator is called.
        """
        raise ArgumentError(f"nl.{self.__name__} is called; accepted: as an operator of a nki.isa instruction")

    def __repr__(self) -> str:
        return f"nl.{self.__name__}"


average = Token("average")
bypass = Token("bypass")
prelu = Token("prelu")

"""What a policy has chosen for a call: made once, offline, and passed along with every call of these sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from common.checks import require_int
from kernels.qkv_cte.device.config import SEED_FLOW, Flow


@dataclass(frozen=True)
class Choice:
    """A plan's free choices; the rest of it follows from the sizes of a call.

    Attributes:
        degree: S-tiles at once.
        resident_h_tiles: N, H-tiles whose weights stay in SBUF.
        flow: how the work beside the products is spread.
    """

    degree: int
    resident_h_tiles: int
    flow: Flow = SEED_FLOW

    def integers(self) -> list[int]:
        """As a list, for the schema of an op or for JSON: degree, N, then the fields of the flow in their order."""
        return [self.degree, self.resident_h_tiles, *map(int, dataclasses.astuple(self.flow))]

    @classmethod
    def from_integers(cls, integers: Sequence[int]) -> Choice:
        """Inverse of `integers`.

        Raises:
            TypeError, ValueError: they are no such list.
        """
        fields = dataclasses.fields(Flow)
        if len(integers) != 2 + len(fields):
            raise ValueError(f"choice has {len(integers)} integers; accepted: {2 + len(fields)}, of Choice.integers()")
        degree, resident, *flow = (require_int("an integer of choice", value, at_least=0) for value in integers)
        values: dict[str, Any] = {
            field.name: bool(value) if field.type is bool else value for field, value in zip(fields, flow, strict=True)
        }
        return cls(degree, resident, Flow(**values))

"""Races of the two cores of a launch over a tensor in shared HBM.

Between two barriers on a tensor nothing orders what the cores do to it. So a core must not read what only the other
wrote since the last one, nor overwrite what the other read, save with the bytes that are there already. Both may
write the same bytes as long as they come to the same values in the end, by the next barrier, read or end of the run.
The cores take turns, so a race is noticed at the later of the two accesses.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from nkisim import machine
from nkisim.errors import RaceError
from nkisim.storage import Region, Storage, overlap

_WRITTEN, _READ, _LAST = 1, 4, 16
"""Bits of core 0 in the map of accesses; those of core 1 are the next higher ones. `_LAST` is who wrote last."""
_DISPUTED = 64
"""Bit of bytes that both wrote."""


class _Dispute(NamedTuple):
    """A region of which a core overwrote what the other had written; with an error if with other bytes."""

    region: Region
    core: int
    error: RaceError | None


class Sharing:
    """Who wrote and read which bytes of a storage since the last barrier on it."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._map: np.ndarray | None = None
        self._unmapped_reads: list[tuple[int, Region, Any]] = []
        self._before: tuple[Region, np.ndarray] | None = None
        self._claims: np.ndarray | None = None
        self._disputes: list[_Dispute] = []
        self._cores: dict[int, machine.Core] = {}

    def settle(self) -> None:
        """Both cores have met over the tensor, or the run has ended: everything until now is in order.

        Raises:
            RaceError: what both wrote depends on who came last.
        """
        self._judge()
        self._disputes.clear()
        self._unmapped_reads.clear()
        if self._map is not None:
            self._map.fill(0)

    def read(self, region: Region, chosen: Any = ...) -> None:
        """The running core reads the elements of a region that a numpy index chooses.

        Raises:
            RaceError: bytes that the other core wrote and this one did not, or of which both wrote different ones.
        """
        me = self._me()
        if self._map is not None:
            accesses = self._of(region)[chosen]
            if ((accesses & (_WRITTEN << 1 - me) != 0) & (accesses & (_WRITTEN << me) == 0)).any():
                raise self._race(me, "reads", "wrote", region)
            self._judge()
        self._unmapped_reads.append((me, region, chosen))

    def before_write(self, region: Region) -> None:
        """The running core is about to write in the region."""
        if self._map is None:
            assert self._storage.raw is not None
            self._map = np.zeros(self._storage.raw.size, np.uint8)
        for core, past, chosen in self._unmapped_reads:
            self._of(past)[chosen] |= _READ << core
        self._unmapped_reads.clear()
        if (self._of(region) & ((_WRITTEN | _READ) << 1 - self._me())).any():
            self._before = region, self._bytes(region).copy()

    def after_write(self, region: Region, chosen: Any = ...) -> None:
        """It has written the elements of the region that a numpy index chooses.

        Raises:
            RaceError: other bytes than were there, over some that the other core read.
        """
        me = self._me()
        if self._before is not None:
            written, before = self._before
            self._before = None
            self._compare(me, written, before, chosen)
        accesses = self._of(region)[chosen]
        self._of(region)[chosen] = accesses & np.uint8(0xFF ^ _LAST << 1 - me) | np.uint8((_WRITTEN | _LAST) << me)

    def _compare(self, me: int, region: Region, before: np.ndarray, chosen: Any) -> None:
        """After a write over bytes that the other core touched: does it matter who came last?"""
        accesses, changed = self._of(region), self._bytes(region) != before
        if (accesses[changed] & (_READ << 1 - me)).any():
            raise self._race(me, "overwrites", "read", region)
        mine = np.zeros(region.shape, np.bool_)
        mine[chosen] = True
        taken_over = mine[..., None] & (accesses & (_LAST << 1 - me) != 0)
        if taken_over.any():
            if self._claims is None:
                self._claims = np.empty_like(self._map)
            accesses[taken_over] |= _DISPUTED
            _by_byte(self._claims, region)[taken_over] = before[taken_over]
            differ = (taken_over & changed).any()
            error = self._race(me, "overwrites", "wrote", region) if differ else None
            self._disputes.append(_Dispute(region, me, error))

    def _judge(self) -> None:
        """Of bytes that both wrote, `_claims` has what that core wrote who did not write last."""
        for region, core, error in self._disputes:
            assert self._claims is not None
            disputed = self._of(region) & _DISPUTED != 0
            if (disputed & (self._bytes(region) != _by_byte(self._claims, region))).any():
                raise error or self._race(core, "overwrites", "wrote", region)

    def _me(self) -> int:
        core = machine.current
        assert core is not None
        self._cores[core.program_id] = core
        return core.program_id

    def _of(self, region: Region) -> np.ndarray:
        assert self._map is not None
        return _by_byte(self._map, region)

    def _bytes(self, region: Region) -> np.ndarray:
        assert self._storage.raw is not None
        return _by_byte(self._storage.raw, region)

    def _race(self, me: int, does: str, did: str, region: Region) -> RaceError:
        name = region.allocation.name
        return RaceError(
            f"core {me} {does} {name} {list(region.shape)}, part of which core {1 - me} {did}"
            f"{self._where(1 - me, did, region)}; accepted: nisa.core_barrier({name}, (0, 1)) in between"
        )

    def _where(self, other: int, did: str, region: Region) -> str:
        for record in reversed(self._cores[other].stream):
            for past in record.writes if did == "wrote" else record.reads:
                if past.allocation is region.allocation and overlap(past, region):
                    return f" at {record.site}"
        return ""


def _by_byte(flat: np.ndarray, region: Region) -> np.ndarray:
    """The bytes of a region (a last axis more) in a flat array with one entry per byte of the storage."""
    size = region.dtype.itemsize
    strides = [*(s * size for s in region.strides), 1]
    return np.ndarray((*region.shape, size), np.uint8, flat, region.offset * size, strides)

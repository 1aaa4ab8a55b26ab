"""Races of the two cores of a launch over a tensor in shared HBM.

Between two barriers on a tensor nothing orders what the cores do to it. So a core must not read what the other
wrote since the last one, nor overwrite what the other read or wrote, save with the bytes that are there already.
The cores take turns, so a race is noticed at the later of the two accesses.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nkisim import machine
from nkisim.errors import RaceError
from nkisim.storage import Region, Storage, overlap

_WRITTEN, _READ = 1, 4
"""Bits of core 0 in the map of accesses; those of core 1 are the next higher ones."""


class Sharing:
    """Who wrote and read which bytes of a storage since the last barrier on it."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._map: np.ndarray | None = None
        self._unmapped_reads: list[tuple[int, Region, Any]] = []
        self._before: tuple[Region, np.ndarray] | None = None
        self._cores: dict[int, machine.Core] = {}

    def settle(self) -> None:
        """Both cores have met over the tensor: everything until now is in order."""
        self._unmapped_reads.clear()
        if self._map is not None:
            self._map.fill(0)

    def read(self, region: Region, chosen: Any = ...) -> None:
        """The running core reads the elements of a region that a numpy index chooses.

        Raises:
            RaceError: bytes that the other core wrote and this one did not.
        """
        me = self._me()
        if self._map is not None:
            accesses = self._of(region)[chosen]
            if ((accesses & (_WRITTEN << 1 - me) != 0) & (accesses & (_WRITTEN << me) == 0)).any():
                self._refuse("reads", "wrote", region)
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
            RaceError: other bytes than were there, over some that the other core read or wrote.
        """
        me = self._me()
        if self._before is not None:
            written, before = self._before
            self._before = None
            changed = self._of(written)[self._bytes(written) != before]
            for bit, did in ((_WRITTEN, "wrote"), (_READ, "read")):
                if (changed & (bit << 1 - me)).any():
                    self._refuse("overwrites", did, region)
        self._of(region)[chosen] |= _WRITTEN << me

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

    def _refuse(self, does: str, did: str, region: Region) -> None:
        me = self._me()
        name = region.allocation.name
        raise RaceError(
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

"""SBUF and PSUM ledgers: what a kernel allocates, where, and what is left.

Kernels allocate at the addresses of a plan made with these ledgers, and the simulator counts with the same
ones, so a plan and a run agree to the byte. All sizes are per partition: a tile occupies the same bytes in
each of its partitions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from common.checks import require_int, require_type
from common.hardware import Hardware
from common.tiling import round_up

SBUF_ALIGNMENT_BYTES = 4
"""The widest element (fp32, int32, float8_e4m3fn_x4): so aligned, any tile may be viewed as any dtype."""

_HOLDERS_NAMED = 5


class BudgetError(ValueError):
    """A request does not fit in the memory that is left."""


@dataclass(frozen=True)
class Allocation:
    """A named range of one memory, the same in every partition.

    Attributes:
        name: unique within its ledger.
        address_bytes: first byte, from the start of the partition.
        bytes_per_partition: size, without padding.
        padding_bytes: bytes skipped before `address_bytes` to align it.
        scope: path of the scopes that free it ("apply pass"), "" when it stays.
    """

    name: str
    address_bytes: int
    bytes_per_partition: int
    padding_bytes: int = 0
    scope: str = ""

    @property
    def end_bytes(self) -> int:
        """One past the last byte."""
        return self.address_bytes + self.bytes_per_partition


@dataclass(frozen=True)
class BankAllocation(Allocation):
    """An allocation of whole PSUM banks: `banks` of them from index `bank`."""

    bank: int = 0
    banks: int = 1


@dataclass(frozen=True)
class MemoryMap:
    """Every allocation a ledger ever made, in order, with the peak and the capacity. `str()` gives a table.

    Allocations of closed scopes may share addresses with later ones, so that sizes can add up to more than
    the peak.
    """

    memory: str
    allocations: tuple[Allocation, ...]
    peak_bytes: int
    capacity_bytes: int

    @property
    def free_bytes(self) -> int:
        """Bytes per partition that no allocation reaches, even at the peak."""
        return self.capacity_bytes - self.peak_bytes

    def __getitem__(self, name: str) -> Allocation:
        """The allocation called `name`; KeyError naming those there are."""
        for allocation in self.allocations:
            if allocation.name == name:
                return allocation
        names = ", ".join(allocation.name for allocation in self.allocations) or "none"
        raise KeyError(f"no {self.memory} allocation {name!r}; there are: {names}")

    def __str__(self) -> str:
        header = ("name", "address", "bytes", "padding", "share", "until")
        rows = [
            (
                allocation.name,
                f"{allocation.address_bytes:,}",
                f"{allocation.bytes_per_partition:,}",
                f"{allocation.padding_bytes:,}",
                f"{allocation.bytes_per_partition / self.capacity_bytes:.1%}",
                f"end of {allocation.scope}" if allocation.scope else "end",
            )
            for allocation in self.allocations
        ]
        peak = ("peak", "", f"{self.peak_bytes:,}", "", f"{self.peak_bytes / self.capacity_bytes:.1%}", "")
        free = ("free", "", f"{self.free_bytes:,}", "", f"{self.free_bytes / self.capacity_bytes:.1%}", "")
        title = f"{self.memory}, bytes per partition, {self.capacity_bytes:,} usable"
        return "\n".join([title, *_aligned([header, *rows, peak, free])])


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows as text, first and last column to the left, numbers between them to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for first, *numbers, last in rows:
        cells = [text.rjust(width) for text, width in zip(numbers, widths[1:-1], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells, last]).rstrip())
    return lines


class _Ledger:
    """Stack of allocations in one memory: allocate upwards, free by leaving a scope."""

    def __init__(self, memory: str, capacity_bytes: int) -> None:
        self.memory = memory
        self.capacity_bytes = capacity_bytes
        self._live: list[Allocation] = []
        self._ever: dict[str, Allocation] = {}
        self._scopes: list[str] = []
        self._peak_bytes = 0

    @property
    def used_bytes(self) -> int:
        """Bytes per partition in use now, padding included."""
        return self._live[-1].end_bytes if self._live else 0

    @property
    def free_bytes(self) -> int:
        """Bytes per partition left now."""
        return self.capacity_bytes - self.used_bytes

    @property
    def peak_bytes(self) -> int:
        """Most bytes per partition ever in use at once, padding included."""
        return self._peak_bytes

    @property
    def live(self) -> tuple[Allocation, ...]:
        """The allocations in use now, lowest address first."""
        return tuple(self._live)

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Free on exit, also after an exception, everything allocated inside.

        Raises:
            TypeError: `name` is no string.
        """
        require_type("name", name, str)
        mark = len(self._live)
        self._scopes.append(name)
        try:
            yield
        finally:
            self._scopes.pop()
            del self._live[mark:]

    def check(self, name: str, address_bytes: int, bytes_per_partition: int) -> None:
        """Refuse an explicit address range that leaves this memory.

        Raises:
            BudgetError: naming the tensor, its address, its size and the limit.
            TypeError: `name` is no string, or a number no integer.
            ValueError: the address is negative or the size not positive.
        """
        require_type("name", name, str)
        address_bytes = require_int("address_bytes", address_bytes, at_least=0)
        bytes_per_partition = require_int("bytes_per_partition", bytes_per_partition, at_least=1)
        end_bytes = address_bytes + bytes_per_partition
        if end_bytes > self.capacity_bytes:
            raise BudgetError(
                f"{self.memory}: {name!r} at address {address_bytes:,} with {bytes_per_partition:,} B per "
                f"partition ends at {end_bytes:,}, beyond the {self.capacity_bytes:,} B usable"
            )

    def freeze(self) -> MemoryMap:
        """Everything allocated so far, closed scopes included."""
        return MemoryMap(self.memory, tuple(self._ever.values()), self._peak_bytes, self.capacity_bytes)

    def _range(self, name: str, size_bytes: int, alignment_bytes: int) -> tuple[int, int, str]:
        """Address, padding and scope path of the next allocation; raises where it cannot be made."""
        require_type("name", name, str)
        if name in self._ever:
            raise ValueError(f"{self.memory}: name {name!r} is taken; every allocation needs its own")
        address_bytes = round_up(self.used_bytes, alignment_bytes)
        if address_bytes + size_bytes > self.capacity_bytes:
            raise BudgetError(self._refusal(name, size_bytes, address_bytes))
        return address_bytes, address_bytes - self.used_bytes, " / ".join(self._scopes)

    def _record(self, allocation: Allocation) -> None:
        self._live.append(allocation)
        self._ever[allocation.name] = allocation
        self._peak_bytes = max(self._peak_bytes, allocation.end_bytes)

    def _refusal(self, name: str, size_bytes: int, address_bytes: int) -> str:
        holders = sorted(self._live, key=lambda allocation: -allocation.bytes_per_partition)[:_HOLDERS_NAMED]
        held = ", ".join(f"{holder.name} {self._amount(holder.bytes_per_partition)}" for holder in holders)
        padding = address_bytes - self.used_bytes
        return (
            f"{self.memory}: {name!r} needs {self._amount(size_bytes)} per partition"
            + (f" after {padding} B of padding" if padding else "")
            + f", free are {self._amount(self.free_bytes)} of {self._amount(self.capacity_bytes)}; "
            + (f"largest holders: {held}" if held else "nothing is allocated yet")
        )

    def _amount(self, size_bytes: int) -> str:
        return f"{size_bytes:,} B"


class SbufLedger(_Ledger):
    """The usable SBUF of one NeuronCore, addresses from 0."""

    def __init__(self, hardware: Hardware) -> None:
        require_type("hardware", hardware, Hardware)
        super().__init__(f"SBUF of {hardware.name}", hardware.sbuf_usable_bytes_per_partition)

    def allocate(self, name: str, bytes_per_partition: int, alignment_bytes: int = SBUF_ALIGNMENT_BYTES) -> Allocation:
        """Take the next free `bytes_per_partition` at a multiple of `alignment_bytes` (a power of two).

        Raises:
            BudgetError: it does not fit; names the request, the free bytes and the largest holders.
            TypeError: `name` is no string, or a size no integer.
            ValueError: the name is taken, or a size is not positive.
        """
        size_bytes = require_int("bytes_per_partition", bytes_per_partition, at_least=1)
        alignment_bytes = require_int("alignment_bytes", alignment_bytes, at_least=1)
        if alignment_bytes & (alignment_bytes - 1):
            raise ValueError(f"alignment_bytes must be a power of two, got {alignment_bytes}")
        address_bytes, padding_bytes, scope = self._range(name, size_bytes, alignment_bytes)
        allocation = Allocation(name, address_bytes, size_bytes, padding_bytes, scope)
        self._record(allocation)
        return allocation


class PsumLedger(_Ledger):
    """The PSUM banks of one NeuronCore, given out whole."""

    def __init__(self, hardware: Hardware) -> None:
        require_type("hardware", hardware, Hardware)
        super().__init__(f"PSUM of {hardware.name}", hardware.psum_bytes_per_partition)
        self.bank_bytes = hardware.psum_bank_bytes

    def allocate(self, name: str, banks: int = 1) -> BankAllocation:
        """Take the next `banks` free banks, side by side.

        Raises:
            BudgetError: they do not fit; names the request, the free banks and the largest holders.
            TypeError: `name` is no string, or `banks` no integer.
            ValueError: the name is taken, or `banks` is not positive.
        """
        size_bytes = require_int("banks", banks, at_least=1) * self.bank_bytes
        address_bytes, _, scope = self._range(name, size_bytes, self.bank_bytes)
        allocation = BankAllocation(
            name, address_bytes, size_bytes, scope=scope, bank=address_bytes // self.bank_bytes, banks=banks
        )
        self._record(allocation)
        return allocation

    def _amount(self, size_bytes: int) -> str:
        banks = size_bytes // self.bank_bytes
        return f"{banks} bank" if banks == 1 else f"{banks} banks"

"""The cores of a launch and the one that runs now."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from common.hardware import Hardware
from nkisim import source
from nkisim.dtypes import DType
from nkisim.enums import MemoryRegion, engine
from nkisim.errors import DivergenceError, LaunchError
from nkisim.instruction import NkiInstruction
from nkisim.loops import Loops
from nkisim.numerics.decode import DecodeCache
from nkisim.options import Options
from nkisim.precision import storage_of
from nkisim.ranks.meeting import LocalWorld, Wait, World
from nkisim.record import Record
from nkisim.sharing import Sharing
from nkisim.storage import Allocation, Region, Storage

_new_record = tuple.__new__
_new_handle = object.__new__
_kernel_files = source.kernel_files
_checked: dict[str, set[Any]] = {}
_plans: dict[str, dict[Any, Any]] = {}


@dataclass
class Launch:
    """One kernel launch: its options and what its cores share.

    Attributes:
        num_programs: cores that run the kernel (LNC).
        decoded: operands kept decoded for the Tensor Engine, of all cores and ranks of the process.
        rank: its number among the ranks of `world`.
        world: the ranks that collectives reach.
        shared: tensors in shared HBM, in the order in which each core creates them.
        constants: tensors that hold data when the kernel starts; see `nkisim.language.constants`.
        joined: collectives that all cores of the rank take part in, in that order; see `nkisim.collectives.joining`.
        watched: accesses of two cores to each tensor in shared HBM; see `nkisim.sharing`.
        meetings: what cores bring to barriers and exchanges; see `nkisim.isa.cores`.
        wait: gives the other cores and ranks the turn until a condition holds; see `nkisim.turns`.
    """

    options: Options
    hardware: Hardware
    num_programs: int
    decoded: DecodeCache
    rank: int = 0
    world: World = field(default_factory=lambda: LocalWorld(1))
    shared: list[Storage] = field(default_factory=list)
    constants: dict[Any, Any] = field(default_factory=dict)
    joined: list[Any] = field(default_factory=list)
    watched: list[Sharing] = field(default_factory=list)
    meetings: dict[Any, Any] = field(default_factory=dict)
    wait: Wait | None = None

    def watch(self, storage: Storage) -> None:
        """Where two cores compute values, notices their races over a tensor in shared HBM."""
        if self.num_programs > 1 and self.options.numerics:
            storage.sharing = Sharing(storage)
            self.watched.append(storage.sharing)

    def place(self, program_id: int) -> str:
        """What errors call a core: the rank only where there are several, the core likewise."""
        rank = f"rank {self.rank}" if self.world.size > 1 else ""
        core = f"core {program_id}" if self.num_programs > 1 or not rank else ""
        return f"{rank} {core}".strip()


class Core:
    """One NeuronCore while it runs a kernel.

    Attributes:
        stream: its records, in program order.
        decoded: operands kept decoded for the Tensor Engine.
        allocations: what the kernel created, in order.
        checked: combinations of call and operand signatures whose rules held, in this process and on this target.
        plans: likewise, with what was worked out of the call's arguments beside the checks.
        loops: the dynamic loops around its instructions.
        dependencies: positions in the stream that the instruction at a position was made to wait for.
        reduce_registers: accumulators of the Scalar and the Vector Engine; see `nkisim.isa.accumulation`.
        warned: what has been warned about in this run.
        constant_calls: how often each place of the kernel has made a constant.
        generators: the engines' random number generators; see `nkisim.isa.random`.
        met: barriers and exchanges that it has come to, by kind and pipe.
        collectives_joined: how many of `launch.joined` it has come to.
    """

    def __init__(self, launch: Launch, program_id: int) -> None:
        self.launch = launch
        self.program_id = program_id
        self.hardware = launch.hardware
        self.numerics = launch.options.numerics
        self.decoded = launch.decoded
        self.stream: list[Record] = []
        self.allocations: list[Allocation] = []
        self.checked = _checked.setdefault(launch.hardware.name, set())
        self.plans = _plans.setdefault(launch.hardware.name, {})
        self.loops = Loops(self.stream)
        self.dependencies: dict[int, list[int]] = {}
        self.reduce_registers: dict[engine, Any] = {}
        self.warned: set[Any] = set()
        self.constant_calls: Counter[Any] = Counter()
        self.generators: dict[engine, Any] = {}
        self.met: Counter[Any] = Counter()
        self.collectives_joined = 0
        self._shared_created = 0

    def emit(
        self,
        op: str,
        on: engine,
        writes: tuple[Region, ...],
        reads: tuple[Region, ...],
        name: str | None = None,
        detail: Any = None,
    ) -> NkiInstruction:
        """Records an instruction of the kernel line that is running; its handle is what the instruction returns."""
        frame = sys._getframe(2)
        code = frame.f_code
        if code.co_filename not in _kernel_files:
            frame = source.kernel_frame(frame) or frame
            code = frame.f_code
        stream = self.stream
        issued = _new_handle(NkiInstruction)
        issued.core = self
        issued.position = len(stream)
        stream.append(_new_record(Record, (op, on, writes, reads, code, frame.f_lasti, name, detail)))
        return issued

    def create(
        self,
        shape: tuple[int, ...],
        dtype: DType,
        buffer: MemoryRegion,
        name: str,
        address: tuple[int, int] | None,
        partitions: int,
        row_bytes: int,
    ) -> Storage:
        """Fresh storage; cores that create shared HBM get the same one for the same call."""
        number = len(self.allocations)
        allocation = Allocation(
            number,
            name or f"{buffer.value}_{number}",
            buffer,
            shape,
            dtype,
            partitions,
            row_bytes,
            address,
            source.current(),
        )
        storage = self._shared(allocation) if buffer is MemoryRegion.shared_hbm else self._fresh(allocation)
        self.allocations.append(storage.allocation)
        self.loops.note_made(storage.allocation)
        return storage

    def _fresh(self, allocation: Allocation) -> Storage:
        return storage_of(allocation, self.launch.options).fresh(allocation, numerics=self.numerics)

    def _shared(self, allocation: Allocation) -> Storage:
        shared, position = self.launch.shared, self._shared_created
        if position == len(shared):
            shared.append(self._fresh(allocation))
            self.launch.watch(shared[-1])
        self._shared_created += 1
        first = shared[position].allocation
        mine, theirs = ((a.shape, a.dtype, _given_name(a)) for a in (allocation, first))
        if mine != theirs:
            raise DivergenceError(
                f"core {self.program_id} creates shared_hbm tensor {position} as {allocation.name} {allocation.dtype}"
                f"{list(allocation.shape)}, another core as {first.name} {first.dtype}{list(first.shape)}"
            )
        return shared[position]


def _given_name(allocation: Allocation) -> str | None:
    """The kernel's own name for a tensor; the ones made up count what each core created."""
    made_up = f"{allocation.buffer.value}_{allocation.number}"
    return None if allocation.name == made_up else allocation.name


current: Core | None = None
"""The core that has the turn; None outside a launch."""


def core(call: str) -> Core:
    """The core that runs now.

    Raises:
        LaunchError: no kernel is running.
    """
    if current is None:
        raise LaunchError(f"{call} is called outside a kernel; run the kernel with nki.simulate(kernel)(...)")
    return current


_thread = 0


def runs_here() -> bool:
    """Whether this thread is the one whose kernel runs."""
    return current is not None and _thread == threading.get_ident()


def take_turn(running: Core | None) -> Core | None:
    """Makes `running` the current core, in this thread, and returns the one before it."""
    global current, _thread
    before, current = current, running
    _thread = threading.get_ident()
    return before

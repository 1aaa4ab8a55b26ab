"""One random kernel: each instruction is drawn while the kernel runs, and checked before the next one."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

import nki.collectives
import nki.isa
import nki.language
from fuzz.oracle import Effect, Fault, Operand, Tensor, accept, copied
from fuzz.view_model import Draw, ViewCall, draw_call, factors, view
from nkisim import Options, run
from nkisim.dtypes import ALL, DType
from nkisim.errors import NkiValidationError
from nkisim.record import Record

ONLY_TRN3 = ("float8_e4m3fn",)
LOADED = ("float32", "bfloat16", "float16", "float8_e4m3", "float8_e4m3fn", "float8_e5m2", "int8", "int16", "int32",
          "uint8", "uint16", "uint32")  # fmt: skip
"""Types of which there is an argument full of numbers."""
_ARGUMENT_ELEMENTS = 4096
_CODES = 4 * _ARGUMENT_ELEMENTS
_PARTITIONS = (1, 2, 3, 4, 5, 31, 32, 33, 64, 100, 128)
_MAX_PSUM_TILES = 6
_MODULES = {"nisa": nki.isa, "nl": nki.language, "ncc": nki.collectives, "np": np}
_BY_NAME = {str(dtype): dtype for dtype in ALL}


class MismatchError(AssertionError):
    """The simulator and the oracle disagree, or the simulator raised something that is no error of its own."""


class SpoiledError(Exception):
    """An instruction was run with other arguments than it was drawn with."""


def arguments(target: str, seed: int) -> dict[str, np.ndarray]:
    """The kernel's arguments: flat arrays, one per type, mostly of moderate numbers, with zeros and extremes.

    `x_rows` are row numbers below 8, `x_codes` bytes that are finite in every fp8 and fp4 type, `x_scales` of e8m0.
    """
    random = np.random.default_rng(seed)
    given: dict[str, np.ndarray] = {}
    for name in LOADED:
        if target == "trn2" and name in ONLY_TRN3:
            continue
        storage = _BY_NAME[name].storage
        if storage.kind in "iu":
            limits = np.iinfo(storage)
            values: np.ndarray = random.integers(limits.min, limits.max, _ARGUMENT_ELEMENTS, np.int64, endpoint=True)
            small = random.random(_ARGUMENT_ELEMENTS) < 0.7
            values[small] = random.integers(0, 20, int(small.sum()))
        else:
            values = random.standard_normal(_ARGUMENT_ELEMENTS) * np.exp2(random.integers(-6, 7, _ARGUMENT_ELEMENTS))
            values[random.random(_ARGUMENT_ELEMENTS) < 0.05] = 0.0
            odd = random.random(_ARGUMENT_ELEMENTS) < 0.02
            values[odd] = random.choice([np.inf, -np.inf, np.nan, 3e38, 1e-40, 65504, 448, -0.0], int(odd.sum()))
        with np.errstate(all="ignore"):
            given[f"x_{name}"] = values.astype(storage)
    given["x_rows"] = random.integers(0, 8, _ARGUMENT_ELEMENTS).astype(np.int32)
    codes = random.integers(0, 256, _CODES, np.uint8)
    codes[codes & 0x7C == 0x7C] &= 0x8F
    given["x_codes"] = codes
    scales = random.integers(117, 138, _ARGUMENT_ELEMENTS, np.uint8)
    odd = random.random(_ARGUMENT_ELEMENTS) < 0.002
    scales[odd] = random.choice([0, 1, 60, 80, 81, 160, 254, 255], int(odd.sum()))
    given["x_scales"] = scales
    return given


def shown(record: Record) -> tuple[object, ...]:
    """A record as another run's can be compared with."""
    regions = [(r.allocation.name, r.dtype, r.offset, r.shape, r.strides) for r in (*record.writes, *record.reads)]
    return (record.op, record.engine, regions, record.name, record.detail)


class Session:
    """A kernel while it is drawn.

    Attributes:
        draw: where choices come from.
        target: "trn2" or "trn3".
        lines: the kernel's statements so far.
        tensors: by name; arguments too.
        environment: what the statements see.
        calls: instructions that were run.
        refusals: of those, how many had to be refused.
        lenient: whether hostile calls may have changed what the oracle knows.
        spoil: changes the arguments of the next instruction, after which nothing is known; None: does not.
    """

    def __init__(self, draw: Draw, target: str, seed: int) -> None:
        self.draw = draw
        self.target = target
        self.seed = seed
        self.given = arguments(target, seed)
        self.lines: list[str] = []
        self.tensors: dict[str, Tensor] = {}
        self.environment: dict[str, Any] = dict(_MODULES)
        self.calls = self.refusals = 0
        self.lenient = False
        self.spoil: Callable[[Session, dict[str, str]], dict[str, str]] | None = None
        for name, values in self.given.items():
            raw = values.view(np.uint8).copy()
            dtype = _BY_NAME[str(values.dtype)]
            self.tensors[name] = Tensor(name, "shared_hbm", values.shape, dtype, raw, np.ones(raw.size, np.bool_))

    @property
    def dtypes(self) -> tuple[DType, ...]:
        """Types that have arguments on the target."""
        return tuple(_BY_NAME[name] for name in LOADED if f"x_{name}" in self.given)

    def run(self, body: Callable[[Session], None]) -> list[Record]:
        """Runs a kernel that `body` draws; its records."""

        def kernel(**given: Any) -> None:
            self.environment.update(given)
            body(self)

        return self._quietly(kernel, numerics=True)

    def replay(self) -> list[Record]:
        """Runs the statements again without numerics; its records."""
        code = compile("\n".join(self.lines), "<fuzz>", "exec")

        def kernel(**given: Any) -> None:
            exec(code, _MODULES | given)

        return self._quietly(kernel, numerics=False)

    def run_hostile(self, body: Callable[[Session], None]) -> None:
        """Runs a kernel that `body` draws, and which may be refused in the end."""

        def kernel(**given: Any) -> None:
            self.environment.update(given)
            self.lenient = True
            body(self)

        with warnings.catch_warnings(), contextlib.suppress(NkiValidationError):
            warnings.simplefilter("ignore")
            run(kernel, options=Options(target=self.target), **{n: v.copy() for n, v in self.given.items()})

    def _quietly(self, kernel: Callable[..., Any], *, numerics: bool) -> list[Record]:
        options = Options(target=self.target, numerics=numerics)
        arguments = {name: values.copy() for name, values in self.given.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            stream = run(kernel, options=options, **arguments).cores[0].stream
        for name, values in arguments.items():
            tensor = self.tensors[name]
            if numerics and (values.view(np.uint8) != tensor.memory).any():
                raise MismatchError(f"argument {name} came back with other bytes\n{self.source()}")
        return stream

    def source(self) -> str:
        """The kernel as a program of its own."""
        statements = "\n    ".join([*self.lines, "return None"])
        return (
            "import numpy as np\n\nimport nki.isa as nisa\nimport nki.language as nl\nfrom nkisim import Options, run\n"
            "from fuzz.session import arguments\n\n"
            f"given = arguments({self.target!r}, {self.seed})\n\n\n"
            f"def kernel({', '.join(self.given)}):\n    {statements}\n\n\n"
            f"run(kernel, options=Options(target={self.target!r}), **given)\n"
        )

    def tile(self, shape: tuple[int, ...], dtype: DType, buffer: str) -> Operand:
        """A new tensor, unwritten."""
        name = f"t{len(self.tensors) - len(self.given)}"
        self._execute(f"{name} = nl.ndarray({shape}, nl.{dtype}, buffer=nl.{buffer})")
        size = int(np.prod(shape)) * dtype.itemsize
        made = Tensor(name, buffer, shape, dtype, np.zeros(size, np.uint8), np.zeros(size, np.bool_))
        self.tensors[name] = made
        model = made.model()
        assert model is not None
        return Operand(made, (), model)

    def call(self, function: str, effect: Callable[[], Effect], **parameters: Any) -> None:
        """Runs an instruction and checks what it did.

        Args:
            effect: as for `perform`.
            parameters: operands, or Python source.
        """
        given = {k: v.source if isinstance(v, Operand) else v for k, v in parameters.items()}
        spoil = (
            self.spoil if self.spoil and (function != "dma_copy" or self.chance(8)) else None
        )  # which most often only prepares
        if spoil is not None:
            given = spoil(self, given)
        statement = f"nisa.{function}({', '.join(f'{k}={v}' for k, v in given.items())})"
        if spoil is not None:
            self.hostile(statement)
            raise SpoiledError
        self.perform(statement, effect)

    def perform(self, statement: str, effect: Callable[[], Effect]) -> None:
        """Runs a statement and checks what it did.

        Args:
            effect: what it has to do; asked before it runs.
        """
        if self.lenient:
            self._tried(statement, effect)
            return
        expected = effect()
        self.calls += 1
        if isinstance(expected, Fault):
            self.refusals += 1
            self._refused(statement, expected)
            self._check_memory()
            return
        self._execute(statement)
        for result in expected:
            tensor = result.operand.tensor
            fault = accept(result, self._stored(tensor))
            if fault is not None:
                raise MismatchError(f"{statement}\n{fault}\n{self.source()}")
        self._check_memory()

    def _tried(self, statement: str, effect: Callable[[], Effect]) -> None:
        """Runs an instruction after hostile ones, which may have left anything; takes over what it does."""
        try:
            expected = effect()
        except (IndexError, OverflowError, ValueError) as error:  # the oracle reads what they left
            raise SpoiledError from error
        self.hostile(statement)
        for result in expected if not isinstance(expected, Fault) else []:
            accept(result, self._stored(result.operand.tensor))

    def _refused(self, statement: str, fault: Fault) -> None:
        try:
            exec(statement, self.environment)
        except NkiValidationError as error:
            if type(error).__name__ == fault.error:
                return
            raise MismatchError(f"{statement}\nexpected {fault.error}, got {error!r}\n{self.source()}") from error
        raise MismatchError(f"{statement}\nexpected {fault.error}, got no error\n{self.source()}")

    def _execute(self, statement: str) -> None:
        self.lines.append(statement)
        try:
            exec(statement, self.environment)
        except Exception as error:
            raise MismatchError(f"{statement}\nraised {type(error).__name__}: {error}\n{self.source()}") from error

    def hostile(self, statement: str) -> None:
        """Runs a statement that may be refused, by an error of the simulator's own only."""
        self.calls += 1
        try:
            exec(statement, self.environment)
        except NkiValidationError:
            return
        except Exception as error:
            raise MismatchError(
                f"{statement}\nraised {type(error).__name__}: {error}\n{self.source()}    # {statement}"
            ) from error

    def _stored(self, tensor: Tensor) -> np.ndarray:
        raw: np.ndarray = self.environment[tensor.name].storage.raw
        return raw

    def _check_memory(self) -> None:
        """Nothing else than the results has changed."""
        for tensor in self.tensors.values():
            raw = self._stored(tensor)
            differs = (raw != tensor.memory) & tensor.written
            if differs.any():
                byte = int(differs.argmax())
                raise MismatchError(f"{self.lines[-1]}\nchanged byte {byte} of {tensor.name}\n{self.source()}")
            storage = self.environment[tensor.name].storage
            missing = np.zeros(raw.size, np.bool_)
            if storage.unwritten is not None:
                missing = np.repeat(storage.unwritten, raw.size // storage.unwritten.size)
            if (missing == tensor.written).any():
                byte = int((missing == tensor.written).argmax())
                raise MismatchError(
                    f"{self.lines[-1]}\nbyte {byte} of {tensor.name} is "
                    f"{'unwritten' if missing[byte] else 'written'} in the simulator only\n{self.source()}"
                )

    # What draws operands.

    def sample(self, choices: Any) -> Any:
        """One of the choices."""
        return self.draw(st.sampled_from(tuple(choices)))

    def chance(self, one_in: int) -> bool:
        """True about once in so many times."""
        return bool(self.draw(st.integers(1, one_in)) == one_in)

    def integer(self, low: int, high: int) -> int:
        """An integer, both ends included."""
        return int(self.draw(st.integers(low, high)))

    def views_of(self, tensor: Tensor, steps: int) -> Operand:
        """A view of a tensor by up to so many calls that NKI accepts."""
        calls: list[Any] = []
        model = tensor.model()
        assert model is not None
        cast = tuple(d for d in self.dtypes) if tensor.dtype in self.dtypes else (tensor.dtype,)
        for _ in range(self.integer(0, steps)):
            call = draw_call(self.draw, model, cast)
            found = view(model, call)
            if found is not None and found.array.size <= _ARGUMENT_ELEMENTS and found.array.ndim <= 5:
                calls.append(call)
                model = found
        return Operand(tensor, tuple(calls), model)

    def shape(self, partitions: int, elements: int, dims: int = 3) -> tuple[int, ...]:
        """A shape of an on-chip tensor with so many elements per partition, in up to so many free dimensions."""
        return (partitions, *factors(self.draw, elements, self.integer(1, dims)))

    def loaded(self, partitions: int, elements: int, dtype: DType, dims: int = 3) -> Operand:
        """A new SBUF tile, of up to so many free dimensions, with numbers of an argument."""
        size = partitions * elements
        tile = self.tile(self.shape(partitions, elements, dims), dtype, "sbuf")
        source = self.part_of(f"x_{dtype}", self.integer(0, _ARGUMENT_ELEMENTS - size), size)
        self.call("dma_copy", lambda: copied(tile, source, through_fp32=False), dst=tile, src=source)
        return tile

    def part_of(self, name: str, start: int, size: int, dtype: DType | None = None) -> Operand:
        """So many elements of an argument, which may be read as another type."""
        tensor = self.tensors[name]
        calls = [ViewCall("index", (slice(start, start + size),))]
        if dtype is not None:
            calls.append(ViewCall("view", (dtype,)))
        model = tensor.model(calls)
        assert model is not None
        return Operand(tensor, tuple(calls), model)

    def source_operand(self, dtypes: tuple[DType, ...], buffers: tuple[str, ...] = ("sbuf", "psum")) -> Operand:
        """A view that an engine may read: an existing one, or of a new tile."""
        fitting = [t for t in self.tensors.values() if t.buffer in buffers and t.dtype in dtypes and t.written.any()]
        if fitting and not self.chance(4):
            found = self.views_of(self.sample(fitting), 3)
            small = found.model.array.size <= _ARGUMENT_ELEMENTS
            if small and readable(found) and found.dtype in dtypes:
                return found
        partitions = self.sample(_PARTITIONS)
        return self.loaded(partitions, self.integer(1, min(24, _ARGUMENT_ELEMENTS // partitions)), self.sample(dtypes))

    def like(self, other: Operand, dtypes: tuple[DType, ...], buffers: tuple[str, ...] = ("sbuf",)) -> Operand:
        """An input with as many partitions and elements per partition, with numbers in it."""
        fitting = [
            t
            for t in self.tensors.values()
            if t.buffer in buffers
            and t.dtype in dtypes
            and t.shape[0] == other.shape[0]
            and int(np.prod(t.shape[1:])) == other.elements
            and t.written.any()
        ]
        if fitting and not self.chance(3):
            tensor = self.sample(fitting)
            model = tensor.model()
            assert model is not None
            return Operand(tensor, (), model)
        return self.loaded(other.shape[0], other.elements, self.sample(dtypes))

    def result(
        self, partitions: int, elements: int, dtypes: tuple[DType, ...], buffers: tuple[str, ...] = ("sbuf", "psum")
    ) -> Operand:
        """A place for a result: a new tile, or part of a larger one, or a view of an old one."""
        if self.chance(3):
            fitting = [t for t in self.tensors.values() if t.buffer in buffers and t.dtype in dtypes]
            if fitting:
                found = self.views_of(self.sample(fitting), 3)
                if (
                    writable(found)
                    and found.dtype in dtypes
                    and (found.shape[0], found.elements) == (partitions, elements)
                ):
                    return found
        buffer = self.sample(buffers)
        if buffer == "psum" and sum(t.buffer == "psum" for t in self.tensors.values()) >= _MAX_PSUM_TILES:
            if "sbuf" not in buffers:
                fitting = []
            buffer = "sbuf" if "sbuf" in buffers else "psum"
        dtype = self.sample(dtypes)
        if self.chance(3):
            return self._part_of_larger(partitions, elements, dtype, buffer)
        return self.tile(self.shape(partitions, elements), dtype, buffer)

    def _part_of_larger(self, partitions: int, elements: int, dtype: DType, buffer: str) -> Operand:
        free = factors(self.draw, elements, self.integer(1, 2))
        start = self.sample([s for s in (0, 32, 64, 96) if s % _span(partitions) == 0 and s + partitions <= 128])
        step, offset, rest = self.integer(1, 3), self.integer(0, 3), self.integer(0, 2)
        base = self.tile((start + partitions, *free[:-1], offset + free[-1] * step + rest), dtype, buffer)
        last = slice(offset, offset + (free[-1] - 1) * step + 1, step)
        call = ViewCall("index", (slice(start, start + partitions), *[slice(None)] * (len(free) - 1), last))
        model = base.tensor.model((call,))
        assert model is not None
        return Operand(base.tensor, (call,), model)

    def psum_left(self) -> bool:
        """Whether there is room for another PSUM tile."""
        return sum(t.buffer == "psum" for t in self.tensors.values()) < _MAX_PSUM_TILES


def _span(partitions: int) -> int:
    return 32 if partitions <= 32 else 64 if partitions <= 64 else 128


def readable(operand: Operand) -> bool:
    """Whether an engine may access it: on-chip, from a partition that its height allows."""
    partitions = operand.shape[0]
    return operand.tensor.on_chip and partitions <= 128 and operand.model.start_partition % _span(partitions) == 0


def writable(operand: Operand) -> bool:
    """Whether an engine may write it: `readable`, and no element twice."""
    array = operand.model.array
    places = np.zeros(1, np.int64)
    for size, stride in zip(array.shape, array.strides, strict=True):
        places = (places[:, None] + np.arange(size) * stride).reshape(-1)
    return readable(operand) and np.unique(places).size == places.size


def apart(a: Operand, b: Operand) -> bool:
    """Whether two operands are one view, or share no byte: what happens otherwise depends on the engine's order."""
    if a.tensor is not b.tensor:
        return True
    same = a.calls == b.calls or (
        a.model.array.shape == b.model.array.shape
        and a.model.array.strides == b.model.array.strides
        and a.model.offset_bytes == b.model.offset_bytes
        and a.dtype is b.dtype
    )
    return same or not np.may_share_memory(a.model.array, b.model.array)

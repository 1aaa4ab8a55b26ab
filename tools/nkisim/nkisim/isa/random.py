"""Random numbers of the Vector and GpSimd Engines.

The documentation names the generator of trn3 (xorwow) and the size of its state (one of 6 words in each GpSimd lane,
four in each Vector lane), but neither the order of the words, nor how the four take turns, nor how bits become
floating point, nor anything of trn2's Vector generator. So sequences here are not a chip's; what holds here as there
is what the documentation promises: the same seed or state gives the same sequence, a state can be saved and put
back, and numbers are uniform. Without a seed an engine starts from the same state in every run.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from nkisim import dtypes, machine, memory
from nkisim.enums import engine as Engine
from nkisim.errors import ArgumentError, DtypeError, ShapeError
from nkisim.instruction import NkiInstruction
from nkisim.isa import operands, rules
from nkisim.numerics import cast, xorwow
from nkisim.tensor import NkiTensor

_STREAMS = {Engine.gpsimd: 1, Engine.vector: 4}
_INTEGERS = (dtypes.int8, dtypes.int16, dtypes.int32, dtypes.uint8, dtypes.uint16, dtypes.uint32)
_RAND2_TYPES = (
    dtypes.float8_e4m3, dtypes.float8_e5m2, dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.tfloat32,
    *_INTEGERS,
)  # fmt: skip
_FRACTION_BITS = 24


def rng(dst: NkiTensor, engine: Engine = Engine.vector, name: str | None = None) -> NkiInstruction:
    """32 random bits per element, of which the lowest that fit are kept.

    Args:
        dst: integer tile in SBUF or PSUM.
        engine: vector or gpsimd (which cannot reach PSUM).

    Raises:
        WrongBufferError, DtypeError, PartitionError, EngineError.
    """
    call = "nisa.rng"
    core = machine.core(call)
    rules.require_tensors(call, dst=dst)
    chosen = rules.choose_engine(call, engine, (Engine.vector, Engine.gpsimd))
    key = (call, dst.signature, chosen)
    if key not in core.checked:
        _check_dst(call, core, dst, _INTEGERS)
        rules.gpsimd_reach(call, chosen, dst=dst)
        core.checked.add(key)
    issued = core.emit("rng", chosen, (dst.region,), (), name)
    if core.numerics:
        bits = _draw(core, chosen, dst)
        memory.write(dst, bits.astype(f"u{dst.dtype.itemsize}").view(dst.dtype.storage))
    return issued


def rand2(dst: NkiTensor, min: Any, max: Any, name: str | None = None) -> NkiInstruction:
    """Uniform fp32 numbers from `min` up to `max`, cast to dst's type, on the Vector Engine (trn3).

    Args:
        dst: tile in SBUF or PSUM of a float type but e4m3fn, or an integer type.
        min, max: numbers or fp32 tiles (partitions, 1); min is below max.

    Raises:
        TargetError, WrongBufferError, DtypeError, ShapeError, PartitionError, UninitializedReadError.
        ArgumentError: min is not below max.
    """
    call = "nisa.rand2"
    core = machine.core(call)
    rules.require_tensors(call, dst=dst)
    key = (call, dst.signature, *operands.signatures(min, max))
    if key not in core.checked:
        rules.generation(call, core.hardware, core.hardware.supports_mx, "trn3")
        _check_dst(call, core, dst, _RAND2_TYPES)
        for operand, value in (("min", min), ("max", max)):
            operands.check_scalar(call, operand, value, dst, (dtypes.float32,))
        core.checked.add(key)
    if not isinstance(min, NkiTensor) and not isinstance(max, NkiTensor) and not min < max:
        raise ArgumentError(f"{call}: min {min!r}, max {max!r}; accepted: min below max")
    issued = core.emit("rand2", Engine.vector, (dst.region,), operands.regions(min, max), name)
    if core.numerics:
        low, high = (operands.scalar(call, n, v, len(dst.shape)) for n, v in (("min", min), ("max", max)))
        if not (low < high).all():
            raise ArgumentError(f"{call}: min is not below max in some partition; accepted: min below max")
        memory.write(dst, low + _fractions(_draw(core, Engine.vector, dst)) * (high - low))
    return issued


def dropout(dst: NkiTensor, data: NkiTensor, prob: Any, name: str | None = None) -> NkiInstruction:
    """`data` with each element made 0 with probability `prob`, on the Vector Engine.

    Args:
        dst, data: tiles of one type with as many partitions and elements per partition.
        prob: a number, or a float tile (partitions, 1), fp32 where data is of an integer type.

    Raises:
        WrongBufferError, DtypeError, ShapeError, PartitionError, UninitializedReadError.
        ArgumentError: a number outside 0 to 1.
    """
    call = "nisa.dropout"
    core = machine.core(call)
    try:
        key = (call, dst.signature, data.signature, operands.signature(prob))
    except AttributeError:
        rules.require_tensors(call, dst=dst, data=data)
        raise
    if key not in core.checked:
        rules.tile(call, "data", data, core.hardware, rules.ON_CHIP)
        rules.tile(call, "dst", dst, core.hardware, rules.ON_CHIP)
        rules.writable(call, "dst", dst)
        rules.same_dtype(call, "dst", dst, "data", data)
        rules.same_elements(call, "dst", dst, "data", data)
        floats = tuple(kind for kind in dtypes.ALL if kind.is_float)
        operands.check_scalar(call, "prob", prob, data, floats if data.dtype.is_float else (dtypes.float32,))
        core.checked.add(key)
    if not isinstance(prob, NkiTensor) and not 0 <= prob <= 1:
        raise ArgumentError(f"{call}: prob {prob!r}; accepted: 0 to 1")
    issued = core.emit("dropout", Engine.vector, (dst.region,), (data.region, *operands.regions(prob)), name)
    if core.numerics:
        values = memory.read(call, "data", data).reshape(dst.shape)
        kept = _fractions(_draw(core, Engine.vector, dst)) >= operands.scalar(call, "prob", prob, len(dst.shape))
        memory.write(dst, np.where(kept, values, np.zeros((), values.dtype)))
    return issued


def set_rng_seed(src_seeds: NkiTensor, name: str | None = None) -> NkiInstruction:
    """Seeds the Vector Engine's generator, every lane differently.

    Args:
        src_seeds: tile (1, 1) of 32 bits in SBUF or PSUM.

    Raises:
        WrongBufferError, DtypeError, ShapeError, UninitializedReadError.
    """
    call = "nisa.set_rng_seed"
    core = machine.core(call)
    rules.require_tensors(call, src_seeds=src_seeds)
    rules.tile(call, "src_seeds", src_seeds, core.hardware, rules.ON_CHIP)
    if src_seeds.dtype.itemsize != 4:
        raise DtypeError(f"{call}: src_seeds is {src_seeds.dtype}; accepted: a type of 32 bits")
    if src_seeds.shape != (1, 1):
        raise ShapeError(f"{call}: src_seeds {list(src_seeds.shape)}; accepted: (1, 1)")
    issued = core.emit("set_rng_seed", Engine.vector, (), (src_seeds.region,), name)
    if core.numerics:
        seed = int(memory.read(call, "src_seeds", src_seeds).view(np.uint32)[0, 0])
        core.generators[Engine.vector] = _fresh(core, Engine.vector, seed)
    return issued


def rand_set_state(src_seeds: NkiTensor, engine: Engine = Engine.gpsimd, name: str | None = None) -> NkiInstruction:
    """Gives the generators of an engine's lanes, one per partition, their state.

    Args:
        src_seeds: uint32 tile in SBUF, (lanes, 6) for gpsimd, (lanes, 24) for vector.
        engine: gpsimd, or on trn3 vector.

    Raises:
        WrongBufferError, DtypeError, ShapeError, EngineError, PartitionError, UninitializedReadError.
    """
    call = "nisa.rand_set_state"
    core = machine.core(call)
    rules.require_tensors(call, src_seeds=src_seeds)
    chosen = _state_engine(call, core, engine)
    rules.tile(call, "src_seeds", src_seeds, core.hardware, (rules.SBUF,))
    _check_state(call, "src_seeds", src_seeds, chosen)
    issued = core.emit("rand_set_state", chosen, (), (src_seeds.region,), name)
    if core.numerics:
        states = _lanes(core, chosen, src_seeds)
        states[...] = memory.read(call, "src_seeds", src_seeds).reshape(states.shape)
    return issued


def rand_get_state(dst: NkiTensor, engine: Engine = Engine.gpsimd, name: str | None = None) -> NkiInstruction:
    """Stores the state of the generators of an engine's lanes, one per partition.

    Args:
        dst: uint32 tile, (lanes, 6) for gpsimd, (lanes, 24) for vector; in SBUF, for vector also in PSUM.
        engine: gpsimd, or on trn3 vector.

    Raises:
        WrongBufferError, DtypeError, ShapeError, EngineError, PartitionError.
    """
    call = "nisa.rand_get_state"
    core = machine.core(call)
    rules.require_tensors(call, dst=dst)
    chosen = _state_engine(call, core, engine)
    rules.tile(call, "dst", dst, core.hardware, rules.ON_CHIP)
    rules.gpsimd_reach(call, chosen, dst=dst)
    rules.writable(call, "dst", dst)
    _check_state(call, "dst", dst, chosen)
    issued = core.emit("rand_get_state", chosen, (dst.region,), (), name)
    if core.numerics:
        memory.write(dst, _lanes(core, chosen, dst).reshape(dst.shape))
    return issued


def _check_dst(call: str, core: machine.Core, dst: NkiTensor, accepted: tuple[dtypes.DType, ...]) -> None:
    rules.tile(call, "dst", dst, core.hardware, rules.ON_CHIP)
    rules.writable(call, "dst", dst)
    rules.dtype(call, "dst", dst, accepted)


def _state_engine(call: str, core: machine.Core, asked: Engine) -> Engine:
    vector_too = core.hardware.supports_mx
    return rules.choose_engine(call, asked, (Engine.gpsimd, Engine.vector) if vector_too else (Engine.gpsimd,))


def _check_state(call: str, operand: str, tensor: NkiTensor, chosen: Engine) -> None:
    rules.dtype(call, operand, tensor, (dtypes.uint32,))
    words = _STREAMS[chosen] * xorwow.WORDS
    if len(tensor.shape) != 2 or tensor.shape[1] != words:
        raise ShapeError(f"{call}: {operand} {list(tensor.shape)}; accepted: (lanes, {words}) on engine {chosen.name}")


def _fresh(core: machine.Core, on: Engine, seed: int) -> np.ndarray:
    return xorwow.spread(seed, (core.hardware.partitions, _STREAMS[on]))


def _lanes(core: machine.Core, on: Engine, tile: NkiTensor) -> np.ndarray:
    """States of the lanes that a tile's partitions meet, to be read and changed."""
    states = core.generators.get(on)
    if states is None:
        states = core.generators[on] = _fresh(core, on, 0)
    start = tile.start_partition
    lanes: np.ndarray = states[start : start + tile.shape[0]]
    return lanes


def _draw(core: machine.Core, on: Engine, dst: NkiTensor) -> np.ndarray:
    """uint32 for each element of dst."""
    count = prod(dst.shape[1:])
    drawn = xorwow.draw(_lanes(core, on, dst), -(-count // _STREAMS[on]))
    return drawn.reshape(dst.shape[0], -1)[:, :count].reshape(dst.shape)


def _fractions(bits: np.ndarray) -> np.ndarray:
    """fp32 in [0, 1), from the upper 24 bits."""
    return cast.to_fp32(bits >> np.uint32(32 - _FRACTION_BITS)) * np.float32(2.0**-_FRACTION_BITS)

"""Mean and variance per partition on the Vector Engine."""

from __future__ import annotations

from math import prod

import numpy as np

from nkisim import machine, memory
from nkisim.enums import engine as Engine
from nkisim.errors import ShapeError
from nkisim.instruction import NkiInstruction
from nkisim.isa import operands, rules
from nkisim.tensor import NkiTensor

_BN_STATS_MAX = 512
_STATISTICS = 6
_TUPLE = 3
_RESULTS = 2


def bn_stats(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> NkiInstruction:
    """(count, mean, variance * count) of the even and then of the odd elements of each partition, in fp32.

    A partition of one element has no odd ones: their count, mean and variance are given as 0.

    Args:
        dst: tile with 6 elements per partition.
        data: tile with up to 512 elements per partition.
    """
    call = "nisa.bn_stats"
    core = machine.core(call)
    rules.require_tensors(call, dst=dst, data=data)
    key = (call, dst.signature, data.signature)
    if key not in core.checked:
        _check(call, core, dst, data, _STATISTICS)
        if prod(data.shape[1:]) > _BN_STATS_MAX:
            raise ShapeError(
                f"{call}: data {list(data.shape)} has {prod(data.shape[1:])} elements per partition; "
                f"accepted: up to {_BN_STATS_MAX}"
            )
        core.checked.add(key)
    issued = core.emit("bn_stats", Engine.vector, (dst.region,), (data.region,), name)
    if core.numerics:
        values = operands.shaped(call, "data", data, (data.shape[0], prod(data.shape[1:])))
        memory.write(dst, np.concatenate([_moments(values[:, 0::2]), _moments(values[:, 1::2])], axis=1))
    return issued


def _moments(values: np.ndarray) -> np.ndarray:
    partitions, count = values.shape
    if count == 0:
        return np.zeros((partitions, _TUPLE), np.float32)
    with np.errstate(all="ignore"):
        mean = values.mean(axis=1, keepdims=True)
        spread = np.square(values - mean).sum(axis=1, keepdims=True)
    return np.concatenate([np.full((partitions, 1), count, np.float32), mean, spread], axis=1)


def bn_aggr(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> NkiInstruction:
    """Mean and variance per partition from the (count, mean, variance * count) of its parts, in fp32.

    Args:
        dst: tile with 2 elements per partition.
        data: tile whose elements per partition are a multiple of 3, as `bn_stats` gives them.
    """
    call = "nisa.bn_aggr"
    core = machine.core(call)
    rules.require_tensors(call, dst=dst, data=data)
    key = (call, dst.signature, data.signature)
    if key not in core.checked:
        _check(call, core, dst, data, _RESULTS)
        if prod(data.shape[1:]) % _TUPLE:
            raise ShapeError(
                f"{call}: data {list(data.shape)} has {prod(data.shape[1:])} elements per partition; "
                f"accepted: a multiple of {_TUPLE}"
            )
        core.checked.add(key)
    issued = core.emit("bn_aggr", Engine.vector, (dst.region,), (data.region,), name)
    if core.numerics:
        parts = operands.shaped(call, "data", data, (data.shape[0], prod(data.shape[1:]) // _TUPLE, _TUPLE))
        count, mean, spread = parts[..., 0], parts[..., 1], parts[..., 2]
        with np.errstate(all="ignore"):
            total = count.sum(axis=1, keepdims=True)
            whole = (count * mean).sum(axis=1, keepdims=True) / total
            variance = (spread + count * np.square(mean - whole)).sum(axis=1, keepdims=True) / total
        memory.write(dst, np.concatenate([whole, variance], axis=1))
    return issued


def _check(call: str, core: machine.Core, dst: NkiTensor, data: NkiTensor, results: int) -> None:
    rules.numeric(call, "data", data, core.hardware, rules.ON_CHIP)
    rules.numeric(call, "dst", dst, core.hardware, rules.ON_CHIP)
    rules.writable(call, "dst", dst)
    rules.same_partitions(call, "dst", dst, "data", data)
    if prod(dst.shape[1:]) != results:
        raise ShapeError(f"{call}: dst {list(dst.shape)}; accepted: {results} elements per partition")

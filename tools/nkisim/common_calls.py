"""A call of each common instruction, for the bench and for tests that go through all of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import nki.isa as nisa
import nki.language as nl
from nki.language import NkiTensor


def common_calls(target: str = "trn3") -> dict[str, tuple[Any, ...]]:
    """By name: the function, and operands that it takes on the target, made in the kernel that runs."""
    newer = _trn3_calls() if target == "trn3" else ()
    vector, gpsimd = (*_vector_calls(), *_searches()), (*_gpsimd_calls(), *_gathers(), *_random_calls())
    calls = (*newer, *_tensor_calls(), *vector, *_scalar_calls(), *gpsimd, *_dma_calls())
    return {call[0].__name__: call for call in sorted(calls, key=lambda call: call[0].__name__)}


def _fp32(columns: int = 512, buffer: Any = nl.sbuf) -> NkiTensor:
    return nl.ndarray((128, columns), nl.float32, buffer)


def _tensor_calls() -> Iterable[tuple[Any, ...]]:
    words = [nl.ndarray((128, n), nl.bfloat16) for n in (128, 512)]
    psum, turned = (nl.ndarray((128, n), d, nl.psum) for n, d in ((512, nl.float32), (128, nl.bfloat16)))
    yield nisa.nc_matmul, psum, *words
    yield nisa.nc_transpose, turned, words[0]


def _trn3_calls() -> Iterable[tuple[Any, ...]]:
    x, y, column = _fp32(), _fp32(), _fp32(1)
    data = [nl.ndarray((128, n), nl.float8_e4m3fn_x4) for n in (128, 512)]
    scales = [nl.ndarray((128, n), nl.uint8) for n in (128, 512)]
    yield nisa.activate2, x, nl.exp, y, 2.0, column, nl.multiply, nl.add
    yield nisa.exponential, x, y, column
    yield nisa.nc_matmul_mx, _fp32(buffer=nl.psum), *data, *scales
    yield nisa.rand2, x, 0.0, 1.0
    yield nisa.quantize_mx, data[0], nl.ndarray((128, 512), nl.bfloat16), scales[0]


def _vector_calls() -> Iterable[tuple[Any, ...]]:
    x, y, z, column, low, high = *(_fp32() for _ in range(3)), *(_fp32(1) for _ in range(3))
    mask, statistics, moments = nl.ndarray((128, 512), nl.uint8), _fp32(6), _fp32(2)
    yield nisa.bn_aggr, moments, statistics
    yield nisa.bn_stats, statistics, x
    yield nisa.memset, x, 0.0
    yield nisa.nc_stream_shuffle, x, y, [0] * 32
    yield nisa.range_select, x, y, nl.greater_equal, nl.less, low, high
    yield nisa.reciprocal, x, y
    yield nisa.scalar_tensor_tensor, x, y, nl.multiply, column, nl.add, z
    yield nisa.select_reduce, x, mask, y, 0.0
    yield nisa.tensor_copy, x, _fp32(buffer=nl.psum)
    yield nisa.tensor_copy_predicated, x, y, mask
    yield nisa.tensor_reduce, column, nl.add, x, 1
    yield nisa.tensor_scalar, x, y, nl.multiply, column
    yield nisa.tensor_scalar_cumulative, x, y, nl.multiply, nl.add, 1.0
    yield nisa.tensor_scalar_reduce, x, y, nl.multiply, 2.0, nl.add, column
    yield nisa.tensor_tensor, x, y, z, nl.add
    yield nisa.tensor_tensor_scan, x, y, z, 0.0, nl.multiply, nl.add


def _searches() -> Iterable[tuple[Any, ...]]:
    x, values, indices = _fp32(), _fp32(8), nl.ndarray((128, 8), nl.uint32)
    yield nisa.max8, values, x
    yield nisa.nc_find_index8, indices, x, values
    yield nisa.nc_match_replace8, _fp32(), x, values, 0.0


def _scalar_calls() -> Iterable[tuple[Any, ...]]:
    x, y, column, result = _fp32(), _fp32(), _fp32(1), _fp32(1)
    yield nisa.activation, x, nl.exp, y, column, 0.5
    yield nisa.activation_reduce, x, nl.exp, y, nl.add, result, column


def _gpsimd_calls() -> Iterable[tuple[Any, ...]]:
    x, y, element = _fp32(), _fp32(), nl.ndarray((1, 1), nl.int32)
    register = nisa.register_alloc(1)
    yield nisa.affine_select, x, [[1, 512]], 1, y, 0.0
    yield nisa.iota, nl.ndarray((128, 512), nl.int32), [[1, 512]], 0, 1
    yield nisa.register_load, register, element
    yield nisa.register_move, register, 3
    yield nisa.register_store, element, register
    yield nisa.tensor_partition_reduce, nl.ndarray((1, 512), nl.float32), nl.add, x


def _gathers() -> Iterable[tuple[Any, ...]]:
    x, indices = _fp32(), nl.ndarray((128, 512), nl.uint32)
    words, best, places = (nl.ndarray((128, n), d) for n, d in ((512, nl.bfloat16), (8, nl.bfloat16), (8, nl.uint32)))
    segments, bounds = nl.ndarray((1, 512), nl.int32), nl.ndarray((1, 2, 512), nl.int32)
    yield nisa.local_gather, _fp32(32), x, nl.ndarray((128, 2), nl.uint16)
    yield nisa.nc_n_gather, _fp32(), x, indices
    yield nisa.nonzero_with_count, nl.ndarray((128, 513), nl.int32), x
    yield nisa.sequence_bounds, bounds, segments
    yield nisa.topk, best, places, words, 64


def _random_calls() -> Iterable[tuple[Any, ...]]:
    x, numbers = _fp32(), nl.ndarray((128, 512), nl.uint32)
    yield nisa.dropout, x, _fp32(), 0.5
    yield nisa.rng, numbers, nisa.engine.gpsimd


def _dma_calls() -> Iterable[tuple[Any, ...]]:
    x, hbm = _fp32(), _fp32(buffer=nl.private_hbm)
    words, turned = nl.ndarray((512, 128), nl.bfloat16, nl.private_hbm), nl.ndarray((128, 512), nl.bfloat16)
    yield nisa.dma_copy, x, hbm
    yield nisa.dma_compute, _fp32(buffer=nl.private_hbm), [hbm, hbm], nl.add
    yield nisa.dma_transpose, turned, words

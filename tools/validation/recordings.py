"""Instruction streams of the rebuilt kernels, recorded once, and timelines of them for any constants."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import nkisim
from common.hardware import TRN2
from devicetime.constants import Constants
from devicetime.predict import predict
from devicetime.timeline import Timeline, TrackKind
from nkisim.execution import Run
from tools.validation import matmul_kernels, small_kernels

M, K, N = 4096, 8192, 8192
"""Sizes of the tutorial's product."""

MATMULS: dict[str, Callable[..., Any]] = {
    "v2": matmul_kernels.load_for_every_product,
    "v3": matmul_kernels.hoist_loads,
    "v5": matmul_kernels.block_all,
}

CURVE_COPIES = 64
"""Copies of a point of the throughput curve."""


@functools.cache
def matmul(version: str) -> Run:
    """A version of the tutorial's product."""
    return _record(MATMULS[version], _empty(torch.float32, K, M), _empty(torch.float32, K, N))


@functools.cache
def load(rows: int, columns: int, static: bool) -> Run:
    """A bf16 load, an exponential of it and a store."""
    return _record(small_kernels.load_and_exponentiate, _empty(torch.bfloat16, rows, columns), static)


@functools.cache
def copies(row_bytes: int) -> Run:
    """Loads of 128 rows of as many bytes."""
    return _record(small_kernels.copies, _empty(torch.bfloat16, CURVE_COPIES, 128, row_bytes // 2), CURVE_COPIES)


@functools.cache
def vector_chain() -> Run:
    """[128, 512] fp32 out of PSUM and within SBUF."""
    return _record(small_kernels.vector_chain, _empty(torch.float32, 128, 512))


def timeline(run: Run, constants: Constants) -> Timeline:
    """On trn2, which the sources measured."""
    return predict(run, TRN2, constants)


def events(made: Timeline, op: str, kind: TrackKind = TrackKind.engine) -> np.ndarray:
    """Events of one call on tracks of one kind, in order of start."""
    chosen = [
        event
        for event in range(made.events)
        if made.tracks[made.track[event]].kind is kind and made.record_of(event).op == op
    ]
    return np.array(chosen, np.int64)


def _empty(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _record(kernel: Callable[..., Any], *arguments: Any) -> Run:
    return nkisim.run(kernel, *arguments, options=nkisim.Options(target=TRN2.name, numerics=False))

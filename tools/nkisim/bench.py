"""Speed of the simulator against plain torch and plain Python, measured in one run.

    bazel run //tools/nkisim:bench
    bazel run //tools/nkisim:bench -- --threads 1 --repeat 5

Prints these ratios and their limits; exit status 1 if one is above its limit:
  projection   an MX projection of 1024 tokens, 5120 inputs and 3840 outputs with numerics, against `torch.matmul` in
               fp32 of the same matrices on as many threads; 0.7 where bf16 dot products are used, else 1.3.
  others       one instruction each without numerics, against a call of an empty Python function with as many
               operands, both in processor time; 40. A call that issues two instructions counts as two.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import torch
from common_calls import common_calls

import nki.isa as nisa
import nki.language as nl
from nki.language import NkiTensor
from nkisim import Options, machine, run
from nkisim.numerics import bf16_product

TOKENS, INPUTS, OUTPUTS = 1024, 5120, 3840
K_TILE, N_TILE = 128, 512
PROJECTION_LIMIT_BF16, PROJECTION_LIMIT_FP32, INSTRUCTION_LIMIT = 0.7, 1.3, 40.0
CALLS = 500
"""Timed in one go: few, and more often, since a busy machine disturbs a long run more surely than a short one."""
GOES = 10


@dataclass(frozen=True)
class Ratio:
    """A measured time over a reference's, and the most it may be."""

    name: str
    measured_s: float
    reference_s: float
    limit: float

    @property
    def value(self) -> float:
        """How many times the reference's time."""
        return self.measured_s / self.reference_s

    def __str__(self) -> str:
        verdict = "within" if self.value <= self.limit else "over"
        return (
            f"{self.name:<24} {self.measured_s:.3e} s, reference {self.reference_s:.3e} s: "
            f"ratio {self.value:.2f}, {verdict} the limit {self.limit}"
        )


def projection(x: NkiTensor, w: NkiTensor, x_scale: NkiTensor, w_scale: NkiTensor) -> NkiTensor:
    """`x.T @ w` of packed operands (K, tokens) and (K, outputs) whose scales lie in (K / 32, 4, columns)."""
    out = nl.ndarray((x.shape[1], w.shape[1]), dtype=nl.bfloat16, buffer=nl.shared_hbm)
    x_tiles = [_load(x, x_scale, k, 0, x.shape[1]) for k in range(0, x.shape[0], K_TILE)]
    for n in range(0, w.shape[1], N_TILE):
        columns = min(N_TILE, w.shape[1] - n)
        w_tiles = [_load(w, w_scale, k, n, columns) for k in range(0, w.shape[0], K_TILE)]
        for m in range(0, x.shape[1], K_TILE):
            psum = nl.ndarray((K_TILE, columns), dtype=nl.float32, buffer=nl.psum)
            for (x_tile, x_tile_scale), (w_tile, w_tile_scale) in zip(x_tiles, w_tiles, strict=True):
                tokens = slice(m, m + K_TILE)
                nisa.nc_matmul_mx(psum, x_tile[:, tokens], w_tile, x_tile_scale[:, tokens], w_tile_scale)
            result = nl.ndarray((K_TILE, columns), dtype=nl.bfloat16, buffer=nl.sbuf)
            nisa.tensor_copy(result, psum)
            nisa.dma_copy(out[m : m + K_TILE, n : n + columns], result)
    return out


def _load(data: NkiTensor, scale: NkiTensor, k: int, n: int, columns: int) -> tuple[NkiTensor, NkiTensor]:
    tile = nl.ndarray((K_TILE, columns), dtype=nl.float8_e4m3fn_x4, buffer=nl.sbuf)
    nisa.dma_copy(tile, data.view(nl.float8_e4m3fn_x4)[k : k + K_TILE, n : n + columns])
    scales = nl.ndarray((K_TILE, columns), dtype=nl.uint8, buffer=nl.sbuf)
    for quadrant in range(K_TILE // 32):
        nisa.dma_copy(scales[32 * quadrant : 32 * quadrant + 4], scale[k // 32 + quadrant, :, n : n + columns])
    return tile, scales


def _operand(columns: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Random packed words and scales near 1."""
    values = random.standard_normal((INPUTS // 4, columns, 4), np.float32).astype(ml_dtypes.float8_e4m3fn)
    scales = random.integers(120, 135, (INPUTS // 4 // 32, 4, columns), dtype=np.uint8)
    return values.view(nl.float8_e4m3fn_x4.storage)[..., 0], scales


def measure_projection(repeat: int) -> Ratio:
    """The simulated projection against torch, in turns, the best of each."""
    random = np.random.default_rng(0)
    (x, x_scale), (w, w_scale) = _operand(TOKENS, random), _operand(OUTPUTS, random)
    a, b = torch.randn(TOKENS, INPUTS), torch.randn(INPUTS, OUTPUTS)
    options = Options(target="trn3")
    simulated, reference = _best_of(
        repeat,
        lambda: run(projection, x, w, x_scale, w_scale, options=options),
        lambda: torch.matmul(a, b),
        time.perf_counter,
    )
    limit = PROJECTION_LIMIT_BF16 if bf16_product.available() else PROJECTION_LIMIT_FP32
    return Ratio("projection", simulated, reference, limit)


def measure_instructions(repeat: int) -> list[Ratio]:
    """Instructions without numerics, each against calls of an empty function."""
    found: list[Ratio] = []

    def kernel() -> None:
        stream = machine.core("bench").stream
        for name, (function, *given) in common_calls().items():
            before = len(stream)
            function(*given)
            issued = max(1, len(stream) - before)
            nothing = _NOTHING[len(given)]
            measured, reference = _best_of(
                GOES * repeat, partial(_calls, function, given), partial(_calls, nothing, given), time.thread_time
            )
            found.append(Ratio(name, measured / CALLS / issued, reference / CALLS, INSTRUCTION_LIMIT))

    run(kernel, options=Options(target="trn3", numerics=False))
    return found


_NOTHING: dict[int, Callable[..., None]] = {
    2: lambda _a, _b: None,
    3: lambda _a, _b, _c: None,
    4: lambda _a, _b, _c, _d: None,
    5: lambda _a, _b, _c, _d, _e: None,
    6: lambda _a, _b, _c, _d, _e, _f: None,
    7: lambda _a, _b, _c, _d, _e, _f, _g: None,
}
"""What the cost of an instruction is compared with, by number of operands."""


def _calls(function: Callable[..., object], given: list[Any]) -> None:
    for _ in range(CALLS):
        function(*given)


def _best_of(
    repeat: int, first: Callable[[], object], second: Callable[[], object], clock: Callable[[], float]
) -> tuple[float, float]:
    """Least seconds of each of two functions, which run in turns after one run to warm up."""
    best = [float("inf"), float("inf")]
    for _ in range(repeat + 1):
        for position, function in enumerate((first, second)):
            start = clock()
            function()
            best[position] = min(best[position], clock() - start)
    return best[0], best[1]


def main() -> None:
    """Prints the ratios; exits with 1 where one is over its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads of torch and of the simulator")
    parser.add_argument("--repeat", type=int, default=3, help="number of runs; the fastest counts")
    arguments = parser.parse_args()
    if arguments.threads < 1 or arguments.repeat < 1:
        parser.error(f"--threads {arguments.threads}, --repeat {arguments.repeat}; accepted: 1 and up")
    torch.set_num_threads(arguments.threads)
    print(f"{arguments.threads} threads, bf16 dot products {'used' if bf16_product.available() else 'not available'}")
    ratios = (measure_projection(arguments.repeat), *measure_instructions(arguments.repeat))
    print(*ratios, sep="\n")
    raise SystemExit(any(ratio.value > ratio.limit for ratio in ratios))


if __name__ == "__main__":
    main()

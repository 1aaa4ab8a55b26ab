"""What predicting costs on this machine, per instruction, in bare calls of a Python function of the same run.

The stream is that of a matmul that loads both of its tiles for every product: half its records are DMAs.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable

import torch

import nki
import nki.isa as nisa
import nki.language as nl
import nkisim
from devicetime import nodes, report, scheduler
from devicetime.dependencies import link
from devicetime.predict import Prediction, explain, predict

_CALLS = 200_000
_REPEATS = 7


@nki.jit
def matmul(lhs: nl.NkiTensor, rhs: nl.NkiTensor) -> nl.NkiTensor:
    """lhs.T @ rhs, [K, M] and [K, N], a product of 128 x 128 x 512 at a time."""
    depth, rows = lhs.shape
    columns = rhs.shape[1]
    out = nl.ndarray((rows, columns), dtype=lhs.dtype, buffer=nl.shared_hbm)
    for m in range(0, rows, 128):
        for n in range(0, columns, 512):
            total = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
            for k in range(0, depth, 128):
                stationary = nl.ndarray((128, 128), dtype=lhs.dtype, buffer=nl.sbuf)
                moving = nl.ndarray((128, 512), dtype=lhs.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=stationary, src=lhs[k : k + 128, m : m + 128])
                nisa.dma_copy(dst=moving, src=rhs[k : k + 128, n : n + 512])
                nisa.nc_matmul(dst=total, stationary=stationary, moving=moving, accumulate=k > 0)
            kept = nl.ndarray((128, 512), dtype=lhs.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=kept, src=total)
            nisa.dma_copy(dst=out[m : m + 128, n : n + 512], src=kept)
    return out


def recorded(rows: int) -> nkisim.execution.Run:
    """A run without values, of 24.25 instructions per row."""
    lhs, rhs = (torch.empty(size, dtype=torch.float32, device="meta") for size in ((8192, rows), (8192, 8192)))
    return nkisim.run(matmul, lhs, rhs, options=nkisim.Options(target="trn2", numerics=False))


def scheduled(prediction: Prediction) -> None:
    """Everything after records have been read: edges, order, and the timeline."""
    machine = prediction.machine
    for core, its_report in zip(prediction.cores, prediction.reports, strict=True):
        link(core.operands, core.partition, core.byte, its_report, core.costs["track"][core.class_of])
    made = scheduler.schedule(nodes.merge(prediction.cores), machine.constants, machine.hardware.dma_engines_per_core)
    report.timeline(dataclasses.replace(prediction, schedule=made))


def shortest(function: Callable[[], object]) -> float:
    """CPU seconds of the fastest of several runs."""
    found = []
    for _ in range(_REPEATS):
        start = time.process_time()
        function()
        found.append(time.process_time() - start)
    return min(found)


def bare_call_seconds() -> float:
    """CPU seconds of a call of a function that does nothing, the loop around it included."""

    def nothing() -> None:
        pass

    def calls() -> None:
        for _ in range(_CALLS):
            nothing()

    return shortest(calls) / _CALLS


def main() -> None:
    """Prints a line per length of the stream."""
    started = time.process_time()
    predict(recorded(128))
    print(f"first prediction of a process, compiled code loaded or made: {time.process_time() - started:.2f} s")
    for rows in (512, 1024, 2048, 4096):
        run = recorded(rows)
        instructions = len(run.cores[0].stream)
        seconds, bare = shortest(functools.partial(predict, run)), bare_call_seconds()
        planned = shortest(functools.partial(scheduled, explain(run)))
        print(
            f"{instructions:>7,} instructions, each {seconds / instructions * 1e6:.2f} us "
            f"({seconds / instructions / bare:.0f} bare calls of {bare * 1e9:.0f} ns), of which scheduling "
            f"{planned / instructions * 1e6:.2f} us ({planned / instructions / bare:.0f})"
        )


if __name__ == "__main__":
    main()

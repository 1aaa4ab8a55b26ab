"""The PSUM banks of a plan: what each part of the kernel takes, from bank 0 on, and leaves to the next.

What a part finishes with comes last: the next part begins with the first banks, while the last are in use.
"""

from __future__ import annotations

from common.budget import MemoryMap, PsumLedger
from common.hardware import Hardware
from common.tiling import ceil_div
from kernels.mla_decode.device.config import BANK_BYTES, BANKS_IN_TURN, P_MAX, Schedule
from kernels.mla_decode.device.head_major import CHUNK_TILES
from kernels.mla_decode.planning import front_plan
from kernels.mla_decode.planning.dims import BANK_FP32, Dims, FrontDims


def make_map(
    part: Dims,
    hardware: Hardware,
    chunks: int,
    pass_columns: int,
    front: FrontDims | None,
    schedule: Schedule,
    shared: str,
) -> MemoryMap:
    """Of a core.

    Args:
        part: its part of the step.
        hardware, front, schedule: as for `plan.make`.
        chunks: latent tiles that DMAs transpose.
        pass_columns: of the o-projection.
        shared: "tokens" or "heads", what the cores have half of each.
    """
    ledger = PsumLedger(hardware)
    if front is not None:
        with ledger.scope("front-fold"):
            widest = front_plan.projected_columns(part, front, shared)
            _allocate(ledger, "projection", ceil_div(widest, BANK_FP32))
            ledger.allocate("gamma")
            _allocate(ledger, "transposed", BANKS_IN_TURN)
            ledger.allocate("absorbed_query")
    with ledger.scope("setup"):
        _in_turn(ledger, "current_features", part.latent_tiles + 1)
    with ledger.scope("attention"):
        _in_turn(ledger, "transposed_keys", _key_transposes(part, chunks))
        _in_turn(ledger, "scores", _score_products(part, schedule))
        ledger.allocate("softmax")
        _in_turn(ledger, "weighted_sum", part.n_tokens)
        ledger.allocate("denominator")
    with ledger.scope("out-absorb"):
        _in_turn(ledger, "absorb", part.latent_tiles)
        _in_turn(ledger, "values", part.n_heads)
    with ledger.scope("o-projection"):
        _allocate(ledger, "output", ceil_div(pass_columns, BANK_FP32))
    return ledger.freeze()


def _key_transposes(part: Dims, chunks: int) -> int:
    """PSUM tiles of a token's keys that the Tensor Engine transposes."""
    per_bank = BANK_BYTES // (P_MAX * part.itemsize)
    return (part.latent_tiles + 1 - chunks) * ceil_div(part.key_tiles, per_bank)


def _score_products(part: Dims, schedule: Schedule) -> int:
    """PSUM tiles of a token's scores."""
    return ceil_div(part.key_tiles, CHUNK_TILES if schedule.head_major else BANK_FP32 // part.n_heads)


def _in_turn(ledger: PsumLedger, name: str, uses: int) -> None:
    _allocate(ledger, name, min(BANKS_IN_TURN, uses))


def _allocate(ledger: PsumLedger, name: str, count: int) -> None:
    for i in range(count):
        ledger.allocate(f"{name}_{i}")

"""The weighted sum of one token's keys."""

import nki.isa as nisa
import nki.language as nl
from kernels.mla_decode.device.buffers import Buffers
from kernels.mla_decode.device.config import BANKS_IN_TURN, P_MAX, AttentionConfig
from kernels.mla_decode.device.placing import bank
from kernels.mla_decode.device.stationary_weights import sum_by_weights
from kernels.mla_decode.device.tiling import latent_tiles, prior_tiles
from nki.language import NkiTensor


def sum_group(
    config: AttentionConfig, buffers: Buffers, gathered: list[NkiTensor], kv_row_cur: NkiTensor, first: int
) -> None:
    """The weighted sums of a group of tokens, `first` on, whose rows are `gathered`, in the schedule's way.

    latent_features[f, part, h, token] = sum over keys of weights * latent column 128 part + f of its row, over the sum
    of weights
    """
    for slot in range(len(gathered)):
        token = first + slot
        current = buffers.current[token % len(buffers.current)]
        nisa.dma_copy(dst=current, src=kv_row_cur[token : token + 1, :])
        if config.schedule.stationary_weights:
            sum_by_weights(config, buffers, gathered[slot], current, token, slot)
        else:
            sum_by_rows(config, buffers, gathered[slot], current, token, slot)


def sum_by_rows(
    config: AttentionConfig, buffers: Buffers, rows: NkiTensor, current: NkiTensor, token: int, slot: int
) -> None:
    """One token's sum, a latent tile at a time: the rows that the gather brought are stationary under the weights.

    A product takes as long as its moving operand is wide, 64 cycles at least. Heads are few, so that four products of
    128 rows and 128 latent columns take less than one whose stationary operand is the weights and which moves 512
    columns; and the sum comes out feature-major, as the tails read it.
    """
    tiles, heads = prior_tiles(config), config.n_heads
    weights = buffers.weights[:, slot, :, :]
    of_tile = []
    for tile in range(tiles):
        of_tile.append(weights[:, tile, :])
    own = weights[0:1, tiles, :]
    nisa.reciprocal(dst=buffers.inverse_sum, data=denominators(config, buffers, slot))
    total = bank(config, f"weighted_sum_{token % BANKS_IN_TURN}", (P_MAX, latent_tiles(config), heads), nl.float32)
    for part in range(latent_tiles(config)):
        first = config.rope + part * P_MAX
        latent, stop = total[:, part, :], first + P_MAX
        for tile in range(tiles):
            nisa.nc_matmul(dst=latent, stationary=rows[:, tile, first:stop], moving=of_tile[tile], accumulate=tile > 0)
        nisa.nc_matmul(dst=latent, stationary=current[:, first:stop], moving=own, accumulate=True)
    inverse = buffers.inverse_sum.expand_dim(1).broadcast(1, latent_tiles(config))
    nisa.tensor_tensor(
        dst=buffers.latent_features[:, :, :, token],
        data1=total,
        data2=inverse,
        op=nl.multiply,
        engine=nisa.engine.vector,
    )


def denominators(config: AttentionConfig, buffers: Buffers, slot: int) -> NkiTensor:
    """[128, h] fp32: on every partition, what all of them add to the denominators."""
    total = bank(config, "denominator", (P_MAX, config.n_heads), nl.float32)
    if buffers.head_major != None:
        sums = buffers.head_major.sums[:, slot : slot + 1]
        nisa.nc_transpose(dst=total, data=sums.broadcast(1, P_MAX), engine=nisa.engine.tensor)
    if buffers.key_major != None:
        nisa.nc_matmul(
            dst=total,
            stationary=buffers.key_major.ones.broadcast(1, P_MAX),
            moving=buffers.key_major.partial[:, slot, :],
            is_stationary_onezero=True,
            accumulate=False,
        )
    return total

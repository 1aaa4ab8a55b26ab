"""Out-absorb and o-projection of a core's tokens from `first` up to `stop`: of all of them at once, once per kernel.

On two cores each makes the values of its tokens or heads and gets the other's; then each projects all of them to its
half of the columns. So the cores exchange little, and o-projection weights are read once.
"""

import nki.isa as nisa
import nki.language as nl
from kernels.mla_decode.device.buffers import Buffers
from kernels.mla_decode.device.config import BANK_BYTES, BANKS_IN_TURN, P_MAX, AttentionConfig
from kernels.mla_decode.device.placing import bank
from kernels.mla_decode.device.tiling import all_heads, count_tiles, first_head, latent_tiles, own_columns
from nki.language import NkiTensor

BANK_COLUMNS = BANK_BYTES // 4
"""fp32 columns of a PSUM bank."""


def absorb_out(config: AttentionConfig, buffers: Buffers, out_absorb_w: NkiTensor, first: int, stop: int) -> None:
    """Maps every head's latent output to its values.

    values[v, core, h, t] = sum_c out_absorb_w[first head + h, v, c] * latent[t, h, c]
    """
    core = nl.program_id(0)
    for h in range(config.n_heads):
        weights = buffers.absorb[h % len(buffers.absorb)]
        features = buffers.absorb_features[h % len(buffers.absorb_features)]
        nisa.dma_copy(dst=weights, src=out_absorb_w[first_head(config) + h, :, :])
        for part in range(latent_tiles(config)):
            spread = bank(config, f"absorb_{part % BANKS_IN_TURN}", (P_MAX, config.v_head_dim), weights.dtype)
            nisa.nc_transpose(dst=spread, data=weights[:, part * P_MAX : (part + 1) * P_MAX], engine=nisa.engine.tensor)
            nisa.tensor_copy(dst=features[:, part, :], src=spread, engine=nisa.engine.vector)
        total = bank(config, f"values_{h % BANKS_IN_TURN}", (config.v_head_dim, stop - first), nl.float32)
        for part in range(latent_tiles(config)):
            nisa.nc_matmul(
                dst=total,
                stationary=features[:, part, :],
                moving=buffers.latent_features[:, part, h, first:stop],
                accumulate=part > 0,
            )
        nisa.tensor_copy(dst=buffers.values[:, core, h, first:stop], src=total, engine=nisa.engine.scalar)


def exchange_values(config: AttentionConfig, buffers: Buffers, first: int, stop: int) -> None:
    """Gives the other core this one's values, and takes its own from it."""
    if config.cores == 1:
        return
    core = nl.program_id(0)
    other = 1 - core
    nisa.sendrecv(
        src=buffers.values[:, core, :, first:stop],
        dst=buffers.values[:, other, :, first:stop],
        send_to_rank=other,
        recv_from_rank=other,
        pipe_id=0,
    )


def project_out(
    config: AttentionConfig, buffers: Buffers, o_proj_w: NkiTensor, output: NkiTensor, first: int, stop: int
) -> None:
    """The o-projection of this core's columns, a pass of them at a time so that every weight is read once.

    output[t, i] = sum over h and v of values[v, h, t] * o_proj_w[h * v_head_dim + v, i], of all cores' tokens and heads
    """
    loads = 0
    sharing = config.cores if config.cores_share == "tokens" else 1
    tokens = sharing * (stop - first)
    of_core = output.reshape((sharing, config.n_tokens, config.hidden))[:, first:stop, :]
    first_column, stop_column = own_columns(config)
    for start in range(first_column, stop_column, config.pass_columns):
        width = min(config.pass_columns, stop_column - start)
        totals = []
        for number in range(count_tiles(width, BANK_COLUMNS)):
            columns = min(BANK_COLUMNS, width - number * BANK_COLUMNS)
            totals.append(bank(config, f"output_{number}", (tokens, columns), nl.float32))
        for h in range(all_heads(config)):
            weights = buffers.o_proj[loads % len(buffers.o_proj)][:, 0:width]
            loads += 1
            row = h * config.v_head_dim
            nisa.dma_copy(dst=weights, src=o_proj_w[row : row + config.v_head_dim, start : start + width])
            for number in range(len(totals)):
                column = number * BANK_COLUMNS
                nisa.nc_matmul(
                    dst=totals[number],
                    stationary=head_values(config, buffers, h, first, stop),
                    moving=weights[:, column : column + totals[number].shape[1]],
                    accumulate=h > 0,
                )
        for number in range(len(totals)):
            column = number * BANK_COLUMNS
            evict = nisa.engine.vector if number % 2 == 0 else nisa.engine.scalar
            target = buffers.output[0:tokens, column : column + totals[number].shape[1]]
            nisa.tensor_copy(dst=target, src=totals[number], engine=evict)
        nisa.dma_copy(dst=of_core[:, :, start : start + width], src=buffers.output[0:tokens, 0:width])


def head_values(config: AttentionConfig, buffers: Buffers, h: int, first: int, stop: int) -> NkiTensor:
    """[v_head_dim, tokens]: a head's values, of both cores' tokens where they share these."""
    if config.cores_share == "tokens":
        return buffers.values[:, :, h, first:stop]
    return buffers.values[:, h // config.n_heads, h % config.n_heads, first:stop]

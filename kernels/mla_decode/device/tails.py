"""Out-absorb and o-projection of the tokens from `first` up to `stop`: of all of them at once, once per kernel."""

import nki.isa as nisa
import nki.language as nl
from kernels.mla_decode.device.buffers import Buffers
from kernels.mla_decode.device.config import BANK_BYTES, P_MAX, AttentionConfig
from kernels.mla_decode.device.placing import bank
from kernels.mla_decode.device.tiling import count_tiles, latent_tiles
from nki.language import NkiTensor

BANK_COLUMNS = BANK_BYTES // 4
"""fp32 columns of a PSUM bank."""

ABSORB_BANKS = (0, 1)
"""PSUM banks of transposed absorb weights, in turn; free when the last token is done."""

VALUE_BANKS = (2, 3)
"""PSUM banks of values, in turn."""


def absorb_out(config: AttentionConfig, buffers: Buffers, out_absorb_w: NkiTensor, first: int, stop: int) -> None:
    """Maps every head's latent output to its values.

    values[v, h, t] = sum_c out_absorb_w[h, v, c] * latent[t, h, c]
    """
    for h in range(config.n_heads):
        weights = buffers.absorb[h % len(buffers.absorb)]
        features = buffers.absorb_features[h % len(buffers.absorb_features)]
        nisa.dma_copy(dst=weights, src=out_absorb_w[h, :, :])
        for part in range(latent_tiles(config)):
            spread = bank(ABSORB_BANKS[part % len(ABSORB_BANKS)], (P_MAX, config.v_head_dim), weights.dtype)
            nisa.nc_transpose(dst=spread, data=weights[:, part * P_MAX : (part + 1) * P_MAX], engine=nisa.engine.tensor)
            nisa.tensor_copy(dst=features[:, part, :], src=spread, engine=nisa.engine.vector)
        total = bank(VALUE_BANKS[h % len(VALUE_BANKS)], (config.v_head_dim, stop - first), nl.float32)
        for part in range(latent_tiles(config)):
            nisa.nc_matmul(
                dst=total,
                stationary=features[:, part, :],
                moving=buffers.latent_features[:, part, h, first:stop],
                accumulate=part > 0,
            )
        nisa.tensor_copy(dst=buffers.values[:, h, first:stop], src=total, engine=nisa.engine.scalar)


def project_out(
    config: AttentionConfig, buffers: Buffers, o_proj_w: NkiTensor, output: NkiTensor, first: int, stop: int
) -> None:
    """The o-projection, a pass of columns at a time so that every weight is read once.

    output[t, i] = sum over h and v of values[v, h, t] * o_proj_w[h * v_head_dim + v, i]
    """
    loads = 0
    for start in range(0, config.hidden, config.pass_columns):
        width = min(config.pass_columns, config.hidden - start)
        totals = []
        for number in range(count_tiles(width, BANK_COLUMNS)):
            columns = min(BANK_COLUMNS, width - number * BANK_COLUMNS)
            totals.append(bank(number, (stop - first, columns), nl.float32))
        for h in range(config.n_heads):
            weights = buffers.o_proj[loads % len(buffers.o_proj)][:, 0:width]
            loads += 1
            row = h * config.v_head_dim
            nisa.dma_copy(dst=weights, src=o_proj_w[row : row + config.v_head_dim, start : start + width])
            for number in range(len(totals)):
                column = number * BANK_COLUMNS
                nisa.nc_matmul(
                    dst=totals[number],
                    stationary=buffers.values[:, h, first:stop],
                    moving=weights[:, column : column + totals[number].shape[1]],
                    accumulate=h > 0,
                )
        for number in range(len(totals)):
            column = number * BANK_COLUMNS
            evict = nisa.engine.vector if number % 2 == 0 else nisa.engine.scalar
            target = buffers.output[0 : stop - first, column : column + totals[number].shape[1]]
            nisa.tensor_copy(dst=target, src=totals[number], engine=evict)
        nisa.dma_copy(dst=output[first:stop, start : start + width], src=buffers.output[0 : stop - first, 0:width])

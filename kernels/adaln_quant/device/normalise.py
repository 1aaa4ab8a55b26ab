"""LayerNorm without weights, then scale and shift, all in fp32."""

import nki.isa as nisa
import nki.language as nl
from kernels.adaln_quant.device.buffers import NormBuffers
from kernels.adaln_quant.device.config import (
    INVERSE_DEVIATION,
    MEAN,
    STATISTICS_COLUMNS,
    STATISTICS_VALUES,
    VARIANCE,
    AdalnQuantConfig,
)
from kernels.adaln_quant.device.tiling import count_tiles
from nki.language import NkiTensor


def fill_eps(config: AdalnQuantConfig, buffers: NormBuffers) -> None:
    """Epsilon as a column, which is what GpSimd adds."""
    nisa.memset(dst=buffers.eps, value=config.eps, engine=nisa.engine.gpsimd)


def take_moments(config: AdalnQuantConfig, buffers: NormBuffers, rows: NkiTensor, index: int) -> NkiTensor:
    """Mean, variance and 1 / sqrt(variance + eps) of each row, [tokens, 3].

    The variance is that of the deviations from the mean, not a difference of squares: a row whose mean is large against
    its deviation loses nothing. The root is GpSimd's, which is more exact than the Scalar Engine's and costs that
    engine no change of function tables.
    """
    tokens = rows.shape[0]
    statistics = buffers.statistics[index][0:tokens, :]
    for chunk in range(count_tiles(config.hidden, STATISTICS_COLUMNS)):
        start = chunk * STATISTICS_COLUMNS
        stop = min(start + STATISTICS_COLUMNS, config.hidden)
        values = chunk * STATISTICS_VALUES
        nisa.bn_stats(dst=statistics[:, values : values + STATISTICS_VALUES], data=rows[:, start:stop])
    moments = buffers.moments[index][0:tokens, :]
    nisa.bn_aggr(dst=moments[:, MEAN : VARIANCE + 1], data=statistics)
    variance = moments[:, VARIANCE : VARIANCE + 1]
    inverse = moments[:, INVERSE_DEVIATION : INVERSE_DEVIATION + 1]
    gpsimd = nisa.engine.gpsimd
    nisa.tensor_tensor(dst=inverse, data1=variance, data2=buffers.eps[0:tokens, :], op=nl.add, engine=gpsimd)
    nisa.tensor_scalar(dst=inverse, data=inverse, op0=nl.rsqrt, operand0=0.0, engine=gpsimd)
    return moments


def modulate(
    rows: NkiTensor, moments: NkiTensor, gain: NkiTensor, shift: NkiTensor, work: NkiTensor, target: NkiTensor
) -> None:
    """target[s, h] = (rows[s, h] - mean[s]) * inverse_deviation[s] * gain[s, h] + shift[s, h], in that order.

    `work` is fp32; the target may be the same.
    """
    nisa.tensor_scalar(
        dst=work,
        data=rows,
        op0=nl.subtract,
        operand0=moments[:, MEAN : MEAN + 1],
        op1=nl.multiply,
        operand1=moments[:, INVERSE_DEVIATION : INVERSE_DEVIATION + 1],
        engine=nisa.engine.vector,
    )
    nisa.tensor_tensor(dst=work, data1=work, data2=gain, op=nl.multiply, engine=nisa.engine.gpsimd)
    nisa.tensor_tensor(dst=target, data1=work, data2=shift, op=nl.add, engine=nisa.engine.gpsimd)

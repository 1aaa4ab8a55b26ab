"""LayerNorm without weights, then scale and shift, all in fp32."""

import nki.isa as nisa
import nki.language as nl
from kernels.adaln_quant.buffers import NormBuffers
from kernels.adaln_quant.config import (
    INVERSE_DEVIATION,
    MEAN,
    STATISTICS_COLUMNS,
    STATISTICS_VALUES,
    VARIANCE,
    AdalnQuantConfig,
)
from kernels.adaln_quant.tiling import count_tiles
from nki.language import NkiTensor


def take_moments(config: AdalnQuantConfig, buffers: NormBuffers, rows: NkiTensor, index: int) -> NkiTensor:
    """Mean, variance and 1 / sqrt(variance + eps) of each row, [tokens, 3].

    The variance is that of the deviations from the mean (Welford), not a difference of squares: a row whose mean is
    large against its deviation loses nothing. The root is GpSimd's, which is more exact than the Scalar Engine's and
    costs that engine no change of function tables.
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
    inverse = moments[:, INVERSE_DEVIATION : INVERSE_DEVIATION + 1]
    nisa.tensor_tensor(
        dst=inverse,
        data1=moments[:, VARIANCE : VARIANCE + 1],
        data2=buffers.eps[0:tokens, :],
        op=nl.add,
        engine=nisa.engine.gpsimd,
    )
    nisa.tensor_scalar(dst=inverse, data=inverse, op0=nl.rsqrt, operand0=0.0, engine=nisa.engine.gpsimd)
    return moments


def modulate(
    buffers: NormBuffers, rows: NkiTensor, moments: NkiTensor, index: int, changes: int, target: NkiTensor
) -> None:
    """target[s, h] = (rows[s, h] - mean[s]) * inverse_deviation[s] * (1 + scale[h]) + shift[h], in that order.

    `index` names the rotating buffer, `changes` that of scale and shift. The target is the work buffer or the output.
    """
    tokens = rows.shape[0]
    work = buffers.work[index][0:tokens, :]
    nisa.tensor_scalar(
        dst=work,
        data=rows,
        op0=nl.subtract,
        operand0=moments[:, MEAN : MEAN + 1],
        op1=nl.multiply,
        operand1=moments[:, INVERSE_DEVIATION : INVERSE_DEVIATION + 1],
        engine=nisa.engine.vector,
    )
    nisa.scalar_tensor_tensor(
        dst=work, data=buffers.scales[changes][0:tokens, :], op0=nl.add, operand0=1.0, op1=nl.multiply, operand1=work
    )
    nisa.tensor_tensor(
        dst=target, data1=work, data2=buffers.shifts[changes][0:tokens, :], op=nl.add, engine=nisa.engine.gpsimd
    )

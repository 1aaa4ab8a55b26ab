"""The on-chip tensors of one core."""

from dataclasses import dataclass

import nki.language as nl
from kernels.adaln_quant.device.config import (
    INVERSE_DEVIATION,
    INVERSE_SCALE,
    MODULATION_BUFFERS,
    S_TILE,
    STATISTICS_COLUMNS,
    STATISTICS_VALUES,
    WORD_CODES,
    AdalnQuantConfig,
)
from kernels.adaln_quant.device.tiling import count_tiles
from nki.language import NKIObject, NkiTensor


@dataclass
class ModulationBuffers(NKIObject):
    """Scale and shift. Lists run over rotating buffers.

    Attributes:
        gains, shifts: [128 tokens, H], 1 + scale in fp32, and shift in its own type; all rows alike for a vector per
            batch.
    """

    gains: list[NkiTensor]
    shifts: list[NkiTensor]


@dataclass
class NormBuffers(NKIObject):
    """What normalising needs. Lists run over the S-tiles under way.

    Attributes:
        eps: [128, 1] fp32.
        statistics: [128 tokens, chunk x 6] fp32, of `bn_stats`.
        moments: [128 tokens, 3] fp32: mean, variance, 1 / standard deviation.
        work: [128 tokens, H] fp32.
    """

    eps: NkiTensor
    statistics: list[NkiTensor]
    moments: list[NkiTensor]
    work: list[NkiTensor]


@dataclass
class QuantiseBuffers(NKIObject):
    """What quantising needs. Lists run over the S-tiles under way.

    Attributes:
        scaling: [128 tokens, 4] fp32: what leads from the largest element of a row to 1 / scale.
        packed: [128 tokens, H / 4 + 1] words: codes, then the scale.
        folded: [128 tokens, H / 2] of the rows' type, for rows that are quantised as they come.
    """

    scaling: list[NkiTensor]
    packed: list[NkiTensor]
    folded: list[NkiTensor]


def place_modulation(config: AdalnQuantConfig, scale: NkiTensor) -> ModulationBuffers:
    """The buffers of scale and shift: of the batches, [B, H], or of the tokens, [B, S, H], of one type."""
    count = config.depth
    if len(scale.shape) == 2:
        count = min(MODULATION_BUFFERS, config.sections)
    return ModulationBuffers(
        gains=rotating(config, "gain", count, config.hidden, nl.float32),
        shifts=rotating(config, "shift", count, config.hidden, scale.dtype),
    )


def place_norm(config: AdalnQuantConfig) -> NormBuffers:
    """The buffers of the norm."""
    statistics_width = STATISTICS_VALUES * count_tiles(config.hidden, STATISTICS_COLUMNS)
    return NormBuffers(
        eps=place(config, "eps", (S_TILE, 1), nl.float32),
        statistics=rotating(config, "statistics", config.depth, statistics_width, nl.float32),
        moments=rotating(config, "moments", config.depth, INVERSE_DEVIATION + 1, nl.float32),
        work=rotating(config, "work", config.depth, config.hidden, nl.float32),
    )


def place_quantise(config: AdalnQuantConfig, x: NkiTensor | None = None) -> QuantiseBuffers:
    """The buffers of the quantisation; of the rows of `x`, if they are quantised as they come."""
    folded = []
    if x != None:
        folded = rotating(config, "folded", config.depth, config.hidden // 2, x.dtype)
    return QuantiseBuffers(
        scaling=rotating(config, "scaling", config.depth, INVERSE_SCALE + 1, nl.float32),
        packed=rotating(config, "packed", config.depth, config.hidden // WORD_CODES + 1, nl.float32),
        folded=folded,
    )


def rotating(config: AdalnQuantConfig, name: str, count: int, width: int, dtype: str) -> list[NkiTensor]:
    """Buffers [128 tokens, width] to take turns in."""
    buffers = []
    for i in range(count):
        buffers.append(place(config, f"{name}_{i}", (S_TILE, width), dtype))
    return buffers


def place(config: AdalnQuantConfig, name: str, shape: tuple[int, ...], dtype: str) -> NkiTensor:
    """An SBUF tensor at its address of the plan."""
    return nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf, name=name, address=(0, config.addresses[name]))

"""The on-chip tensors of one core."""

from dataclasses import dataclass

import nki.language as nl
from kernels.adaln_quant.config import (
    BANK_COLUMNS,
    BROADCAST_BANKS,
    INVERSE_DEVIATION,
    INVERSE_SCALE,
    MODULATION_BUFFERS,
    ROTATING_BUFFERS,
    S_TILE,
    STATISTICS_COLUMNS,
    STATISTICS_VALUES,
    WORD_CODES,
    AdalnQuantConfig,
)
from kernels.adaln_quant.tiling import count_s_tiles, count_tiles
from nki.language import NKIObject, NkiTensor


@dataclass
class NormBuffers(NKIObject):
    """What normalising and modulating needs. Lists run over rotating buffers.

    Attributes:
        statistics: [128 tokens, chunk x 6] fp32, of `bn_stats`.
        moments: [128 tokens, 3] fp32: mean, variance, 1 / standard deviation.
        eps: [128, 1] fp32.
        work: [128 tokens, H] fp32; the rows themselves where they are fp32.
        scales, shifts: [128 tokens, H]; fp32 and all alike for a vector per batch, else as given for each token.
        vector: [1, H] fp32, a modulation vector on its way to all partitions, with `ones` [1, 128] and PSUM `banks`.
    """

    statistics: list[NkiTensor]
    moments: list[NkiTensor]
    eps: NkiTensor
    work: list[NkiTensor]
    scales: list[NkiTensor]
    shifts: list[NkiTensor]
    vector: NkiTensor | None
    ones: NkiTensor | None
    banks: list[NkiTensor]


@dataclass
class QuantiseBuffers(NKIObject):
    """What quantising needs. Lists run over rotating buffers.

    Attributes:
        scaling: [128 tokens, 5] fp32: what leads from the largest element of a row to its scale and 1 / scale.
        packed: [128 tokens, H / 4 + 1] words: codes, then the scale.
    """

    scaling: list[NkiTensor]
    packed: list[NkiTensor]


def place_rows(config: AdalnQuantConfig, x: NkiTensor) -> list[NkiTensor]:
    """Rotating buffers for the rows of x, [128 tokens, H] of its type."""
    return rotating(config, "rows", count_s_tiles(config), (S_TILE, config.hidden), x.dtype)


def place_outputs(config: AdalnQuantConfig) -> list[NkiTensor]:
    """Rotating buffers for rows that leave as bfloat16, [128 tokens, H]."""
    return rotating(config, "output", count_s_tiles(config), (S_TILE, config.hidden), nl.bfloat16)


def place_norm(config: AdalnQuantConfig, scale: NkiTensor, rows: list[NkiTensor]) -> NormBuffers:
    """The buffers of the norm and of the modulation."""
    hidden, tiles = config.hidden, count_s_tiles(config)
    statistics_width = STATISTICS_VALUES * count_tiles(hidden, STATISTICS_COLUMNS)
    work = rows
    if rows[0].dtype != nl.float32:
        work = rotating(config, "work", tiles, (S_TILE, hidden), nl.float32)
    per_batch = len(scale.shape) == 2
    changes, modulation_dtype = tiles, scale.dtype
    vector, ones, banks = None, None, []
    if per_batch:
        changes, modulation_dtype = config.sections, nl.float32
        vector = place(config, "modulation_vector", (1, hidden), nl.float32)
        ones = place(config, "ones", (1, S_TILE), nl.float32)
        for i in range(min(BROADCAST_BANKS, count_tiles(hidden, BANK_COLUMNS))):
            address = (0, i * nl.tile_size.psum_bank_fmax_bytes)
            banks.append(nl.ndarray((S_TILE, BANK_COLUMNS), nl.float32, nl.psum, name=f"bank_{i}", address=address))
    scales, shifts = [], []
    for i in range(min(MODULATION_BUFFERS, changes)):
        scales.append(place(config, f"scale_{i}", (S_TILE, hidden), modulation_dtype))
        shifts.append(place(config, f"shift_{i}", (S_TILE, hidden), modulation_dtype))
    return NormBuffers(
        statistics=rotating(config, "statistics", tiles, (S_TILE, statistics_width), nl.float32),
        moments=rotating(config, "moments", tiles, (S_TILE, INVERSE_DEVIATION + 1), nl.float32),
        eps=place(config, "eps", (S_TILE, 1), nl.float32),
        work=work,
        scales=scales,
        shifts=shifts,
        vector=vector,
        ones=ones,
        banks=banks,
    )


def place_quantise(config: AdalnQuantConfig) -> QuantiseBuffers:
    """The buffers of the quantisation."""
    tiles = count_s_tiles(config)
    return QuantiseBuffers(
        scaling=rotating(config, "scaling", tiles, (S_TILE, INVERSE_SCALE + 1), nl.float32),
        packed=rotating(config, "packed", tiles, (S_TILE, config.hidden // WORD_CODES + 1), nl.float32),
    )


def rotating(config: AdalnQuantConfig, name: str, tiles: int, shape: tuple[int, ...], dtype: str) -> list[NkiTensor]:
    """Buffers that `tiles` S-tiles rotate through."""
    buffers = []
    for i in range(min(ROTATING_BUFFERS, tiles)):
        buffers.append(place(config, f"{name}_{i}", shape, dtype))
    return buffers


def place(config: AdalnQuantConfig, name: str, shape: tuple[int, ...], dtype: str) -> NkiTensor:
    """An SBUF tensor at its address of the plan."""
    return nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf, name=name, address=(0, config.addresses[name]))

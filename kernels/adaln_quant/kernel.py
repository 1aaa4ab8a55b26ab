"""AdaLN and row quantisation."""

import nki
import nki.isa as nisa
import nki.language as nl
from kernels.adaln_quant.buffers import place_norm, place_outputs, place_quantise, place_rows
from kernels.adaln_quant.config import S_TILE, WORD_CODES, AdalnQuantConfig
from kernels.adaln_quant.loads import (
    fill_constants,
    flat,
    load_rows,
    load_section_modulation,
    load_token_modulation,
)
from kernels.adaln_quant.normalise import modulate, take_moments
from kernels.adaln_quant.quantise import quantise_rows
from kernels.adaln_quant.tiling import count_tiles, tile_tokens
from nki.language import NkiTensor


@nki.jit
def adaln(x: NkiTensor, scale: NkiTensor, shift: NkiTensor, config: AdalnQuantConfig, quantised: bool) -> NkiTensor:
    """`layer_norm(x) * (1 + scale) + shift`, as rows of fp8 codes with their scale (trn3) or in bfloat16.

    Dimensions:
        B, S: batch and sequence; the S tokens of each batch are split evenly over the cores.
        H: row width, a multiple of 4.

    Args:
        x: [B, S, H] bfloat16 or float32.
        scale, shift: both [B, H], or both [B, S, H], float32 or bfloat16.
        config: AdalnQuantConfig, from `plan.Plan.config`.
        quantised: rows of codes; else bfloat16.

    Returns:
        [B, S, H + 4] float8_e4m3fn in shared HBM: H codes, then the row's fp32 scale, as `row_mx_qkv_proj` reads them;
        or [B, S, H] bfloat16.

    Notes:
        Rounding: everything is fp32, a step of rounding at each operator of the formula, until the one rounding to fp8
        or bf16 at the end. The framework's layer rounds to bf16 before a projection; quantised rows skip that.
        Each engine has its part of a row, so that three S-tiles are under way at once: Vector takes the moments,
        normalises and scales; GpSimd shifts; Scalar finds the largest element and makes the codes.

    Pseudocode:
        for section in batches:
            scale, shift = broadcast of the batch's vectors
            for tile in S-tiles of the section:
                rows = load(x[tile])
                mean, variance = moments(rows)
                y = (rows - mean) * rsqrt(variance + eps) * (1 + scale) + shift
                store y as bf16, or
                store fp8(y * (1 / row_scale)) | row_scale, with row_scale = max(max|y| / 448, 1e-6)
    """
    batch, seqlen, hidden = x.shape
    shape, dtype = (batch, seqlen, hidden), nl.bfloat16
    if quantised:
        shape, dtype = (batch, seqlen, hidden + WORD_CODES), nl.float8_e4m3fn
    output = nl.ndarray(shape, dtype=dtype, buffer=nl.shared_hbm, name="output")
    rows_of = place_rows(config, x)
    norm = place_norm(config, scale, rows_of)
    quantising, outputs = None, []
    if quantised:
        quantising = place_quantise(config)
    else:
        outputs = place_outputs(config)
    fill_constants(config, norm)
    section_tiles = count_tiles(config.tokens_per_core, S_TILE)
    for section in range(config.sections):
        load_section_modulation(norm, scale, shift, section)
        for t in range(section_tiles):
            tile = section * section_tiles + t
            index = tile % len(rows_of)
            first, tokens = tile_tokens(config, section, t)
            rows = load_rows(rows_of[index], x, first, tokens)
            changes = load_token_modulation(norm, scale, shift, first, tokens, section, tile)
            moments = take_moments(config, norm, rows, index)
            if quantising is not None:
                work = norm.work[index][0:tokens, :]
                modulate(norm, rows, moments, index, changes, work)
                store_packed(output, quantise_rows(quantising, work, index), first)
            else:
                finished = outputs[index][0:tokens, :]
                modulate(norm, rows, moments, index, changes, finished)
                nisa.dma_copy(dst=flat(output)[first : first + tokens, :], src=finished)
    return output


@nki.jit
def row_quantise(x: NkiTensor, config: AdalnQuantConfig) -> NkiTensor:
    """Rows of fp8 codes with one scale per row (trn3).

    Args:
        x: [B, S, H] bfloat16 or float32; H a multiple of 4.
        config: AdalnQuantConfig of one section, from `plan.Plan.config`.

    Returns:
        [B, S, H + 4] float8_e4m3fn in shared HBM: H codes, then the row's fp32 scale.

    Notes:
        Bit for bit what `common.row_mx.row_quantise_packed` gives, where the Vector Engine's reciprocal is correctly
        rounded, as the simulator's is.

    Pseudocode:
        for tile in S-tiles:
            rows = load(x[tile])
            row_scale = max(max|rows| / 448, 1e-6)
            store fp8(rows * (1 / row_scale)) | row_scale
    """
    batch, seqlen, hidden = x.shape
    packed_shape = (batch, seqlen, hidden + WORD_CODES)
    output = nl.ndarray(packed_shape, dtype=nl.float8_e4m3fn, buffer=nl.shared_hbm, name="output")
    rows_of = place_rows(config, x)
    quantising = place_quantise(config)
    for tile in range(count_tiles(config.tokens_per_core, S_TILE)):
        index = tile % len(rows_of)
        first, tokens = tile_tokens(config, 0, tile)
        rows = load_rows(rows_of[index], x, first, tokens)
        store_packed(output, quantise_rows(quantising, rows, index), first)
    return output


def store_packed(output: NkiTensor, packed: NkiTensor, first: int) -> None:
    """Writes packed rows [tokens, H / 4 + 1 words] to the output's rows `first ..`, one DMA."""
    tokens = packed.shape[0]
    nisa.dma_copy(dst=flat(output).view(nl.float32)[first : first + tokens, :], src=packed)

"""AdaLN and row quantisation."""

import nki
import nki.language as nl
from kernels.adaln_quant.device.buffers import place_modulation, place_norm, place_quantise, rotating
from kernels.adaln_quant.device.config import S_TILE, WORD_CODES, AdalnQuantConfig
from kernels.adaln_quant.device.loads import load_batch_modulation, load_rows, tile_modulation
from kernels.adaln_quant.device.normalise import fill_eps, modulate, take_moments
from kernels.adaln_quant.device.quantise import quantise_rows, quantise_work
from kernels.adaln_quant.device.tiling import count_tiles, tile_tokens
from kernels.adaln_quant.device.transfer import copy, flat
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
        Each engine has its part of a row, so that several S-tiles are under way at once: Vector takes the moments and
        normalises, GpSimd scales and shifts, Scalar finds the largest element and makes the codes.

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
    row_buffers = rotating(config, "rows", config.depth, hidden, x.dtype)
    modulation = place_modulation(config, scale)
    norm = place_norm(config)
    quantising, finished = None, []
    if quantised:
        quantising = place_quantise(config)
    else:
        finished = rotating(config, "finished", config.depth, hidden, nl.bfloat16)
    fill_eps(config, norm)
    section_tiles = count_tiles(config.tokens_per_core, S_TILE)
    for section in range(config.sections):
        load_batch_modulation(modulation, scale, shift, section)
        for t in range(section_tiles):
            tile = section * section_tiles + t
            index = tile % config.depth
            first, tokens = tile_tokens(config, section, t)
            rows = load_rows(row_buffers[index], x, first, tokens)
            gain, offset = tile_modulation(modulation, scale, shift, first, tokens, section, tile)
            moments = take_moments(config, norm, rows, index)
            work = norm.work[index][0:tokens, :]
            if quantising != None:
                modulate(rows, moments, gain, offset, work, work)
                store_packed(output, quantise_work(quantising, work, index), first)
            else:
                result = finished[index][0:tokens, :]
                modulate(rows, moments, gain, offset, work, result)
                copy(dst=flat(output)[first : first + tokens, :], src=result)
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
        GpSimd folds a row onto half by magnitude, Scalar finds the largest element of that, Vector makes the codes.

    Pseudocode:
        for tile in S-tiles:
            rows = load(x[tile])
            row_scale = max(max|rows| / 448, 1e-6)
            store fp8(rows * (1 / row_scale)) | row_scale
    """
    batch, seqlen, hidden = x.shape
    packed_shape = (batch, seqlen, hidden + WORD_CODES)
    output = nl.ndarray(packed_shape, dtype=nl.float8_e4m3fn, buffer=nl.shared_hbm, name="output")
    row_buffers = rotating(config, "rows", config.depth, hidden, x.dtype)
    quantising = place_quantise(config, x)
    for tile in range(count_tiles(config.tokens_per_core, S_TILE)):
        index = tile % config.depth
        first, tokens = tile_tokens(config, 0, tile)
        rows = load_rows(row_buffers[index], x, first, tokens)
        store_packed(output, quantise_rows(quantising, rows, index), first)
    return output


def store_packed(output: NkiTensor, packed: NkiTensor, first: int) -> None:
    """Writes packed rows [tokens, H / 4 + 1 words] to the output's rows `first ..`, one DMA."""
    tokens = packed.shape[0]
    copy(dst=flat(output).view(nl.float32)[first : first + tokens, :], src=packed)

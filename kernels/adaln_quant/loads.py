"""From HBM to the buffers that the norm reads."""

import nki.isa as nisa
from kernels.adaln_quant.buffers import NormBuffers
from kernels.adaln_quant.config import BANK_COLUMNS, AdalnQuantConfig
from kernels.adaln_quant.tiling import count_tiles
from nki.language import NkiTensor


def flat(tensor: NkiTensor) -> NkiTensor:
    """[B, S, H] as [B*S, H]."""
    batch, seqlen, hidden = tensor.shape
    return tensor.reshape((batch * seqlen, hidden))


def load_rows(buffer: NkiTensor, source: NkiTensor, first: int, tokens: int) -> NkiTensor:
    """Rows `first ..` of a tensor [B, S, H] in the buffer."""
    rows = buffer[0:tokens, :]
    nisa.dma_copy(dst=rows, src=flat(source)[first : first + tokens, :])
    return rows


def fill_constants(config: AdalnQuantConfig, buffers: NormBuffers) -> None:
    """Epsilon, and the ones that broadcasts multiply with."""
    nisa.memset(dst=buffers.eps, value=config.eps, engine=nisa.engine.gpsimd)
    if buffers.ones is not None:
        nisa.memset(dst=buffers.ones, value=1.0, engine=nisa.engine.gpsimd)


def load_section_modulation(buffers: NormBuffers, scale: NkiTensor, shift: NkiTensor, section: int) -> None:
    """Broadcasts scale and shift of a batch, [B, H] in HBM, to all partitions; nothing where tokens have their own."""
    if buffers.vector is not None and buffers.ones is not None:
        index = section % len(buffers.scales)
        for source, targets in ((scale, buffers.scales), (shift, buffers.shifts)):
            nisa.dma_copy(dst=buffers.vector, src=source[section : section + 1, :])
            broadcast(buffers, buffers.vector, buffers.ones, targets[index])


def broadcast(buffers: NormBuffers, vector: NkiTensor, ones: NkiTensor, target: NkiTensor) -> None:
    """target[p, h] = ones[0, p] * vector[0, h]

    A product with a row of ones is exact in fp32, and the vector is read from HBM once instead of 128 times.
    """
    hidden = target.shape[1]
    for bank in range(count_tiles(hidden, BANK_COLUMNS)):
        start = bank * BANK_COLUMNS
        stop = min(start + BANK_COLUMNS, hidden)
        spread = buffers.banks[bank % len(buffers.banks)][:, 0 : stop - start]
        nisa.nc_matmul(
            dst=spread, stationary=ones, moving=vector[:, start:stop], is_stationary_onezero=True, accumulate=False
        )
        nisa.tensor_copy(dst=target[:, start:stop], src=spread, engine=nisa.engine.scalar)


def load_token_modulation(
    buffers: NormBuffers, scale: NkiTensor, shift: NkiTensor, first: int, tokens: int, section: int, tile: int
) -> int:
    """Which of the modulation buffers holds an S-tile's scale and shift; loads them where tokens have their own."""
    if buffers.vector is not None:
        return section % len(buffers.scales)
    index = tile % len(buffers.scales)
    load_rows(buffers.scales[index], scale, first, tokens)
    load_rows(buffers.shifts[index], shift, first, tokens)
    return index

"""Copies between HBM and SBUF."""

import nki.isa as nisa
from nki.language import NkiTensor


def copy(dst: NkiTensor, src: NkiTensor) -> None:
    """Copies by DMA. The hardware makes the descriptors: in software GpSimd would, which has work of its own here."""
    nisa.dma_copy(dst=dst, src=src, dge_mode=nisa.dge_mode.hwdge)


def flat(tensor: NkiTensor) -> NkiTensor:
    """[B, S, H] as [B*S, H]."""
    batch, seqlen, hidden = tensor.shape
    return tensor.reshape((batch * seqlen, hidden))

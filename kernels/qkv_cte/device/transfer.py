"""Copies between HBM and SBUF."""

import nki.isa as nisa
from nki.language import NkiTensor


def copy(dst: NkiTensor, src: NkiTensor) -> None:
    """Copies by DMA between equal types. The hardware makes the descriptors: GpSimd has other work here."""
    nisa.dma_copy(dst=dst, src=src, dge_mode=nisa.dge_mode.hwdge, engine=nisa.engine.sync)


def cast_copy(dst: NkiTensor, src: NkiTensor) -> None:
    """Copies by DMA into the destination's type.

    The hardware's descriptors move bytes and cast nothing. Where the types differ the descriptors are made before the
    run, as fixed addresses allow: they take room in HBM, and no time of GpSimd's.
    """
    if dst.dtype == src.dtype:
        copy(dst, src)
    else:
        nisa.dma_copy(dst=dst, src=src, dge_mode=nisa.dge_mode.none)

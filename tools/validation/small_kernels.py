"""Single loads and single instructions, as the vendor's DMA overview and tutorial profile them."""

import nki
import nki.isa as nisa
import nki.language as nl
from nki.language import NkiTensor


@nki.jit
def load_and_exponentiate(x: NkiTensor, static: bool) -> NkiTensor:
    """A load, an exponential of what it brought, and a store. `static`: descriptors made before the kernel runs."""
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    mode = nisa.dge_mode.none if static else nisa.dge_mode.swdge
    nisa.dma_copy(dst=tile, src=x, dge_mode=mode)
    made = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.activation(dst=made, op=nl.exp, data=tile)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=made, dge_mode=mode)
    return out


@nki.jit
def copies(x: NkiTensor, count: int) -> NkiTensor:
    """`count` loads of as many tiles, independent of each other."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for number in range(count):
        tile = nl.ndarray(x.shape[1:], dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[number])
    return out


@nki.jit
def vector_chain(x: NkiTensor) -> NkiTensor:
    """Two independent products, each copied out of PSUM and again within SBUF by the Vector Engine."""
    rows, columns = x.shape
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    out = nl.ndarray((2, rows, columns), dtype=x.dtype, buffer=nl.shared_hbm)
    for number in range(2):
        total = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=total, stationary=tile[:, 0:rows], moving=tile, accumulate=False)
        evicted = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=evicted, src=total, engine=nisa.engine.vector)
        copied = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=copied, src=evicted, engine=nisa.engine.vector)
        nisa.dma_copy(dst=out[number], src=copied)
    return out

"""From HBM to the buffers that the norm reads."""

import nki.isa as nisa
import nki.language as nl
from kernels.adaln_quant.device.buffers import ModulationBuffers
from kernels.adaln_quant.device.config import QUADRANT, S_TILE
from kernels.adaln_quant.device.transfer import cast_copy, flat
from nki.language import NkiTensor


def load_rows(buffer: NkiTensor, source: NkiTensor, first: int, tokens: int) -> NkiTensor:
    """Rows `first ..` of a tensor [B, S, H] in the buffer, in the buffer's type."""
    rows = buffer[0:tokens, :]
    cast_copy(dst=rows, src=flat(source)[first : first + tokens, :])
    return rows


def load_batch_modulation(buffers: ModulationBuffers, scale: NkiTensor, shift: NkiTensor, section: int) -> None:
    """1 + scale and shift of a batch, [B, H] in HBM, on every partition; nothing where tokens have their own.

    gains[p, h] = 1 + scale[section, h];  shifts[p, h] = shift[section, h]
    """
    if len(scale.shape) == 2:
        index = section % len(buffers.gains)
        gain = buffers.gains[index]
        load_vector(gain, scale, section)
        nisa.tensor_scalar(dst=gain, data=gain, op0=nl.add, operand0=1.0, engine=nisa.engine.scalar)
        load_vector(buffers.shifts[index], shift, section)


def load_vector(target: NkiTensor, source: NkiTensor, section: int) -> None:
    """target[p, h] = source[section, h]

    The first partition of each quadrant gets the vector from HBM, the others from that one: 4 reads instead of 128. A
    product with ones would read it once, but in fp32 takes the Tensor Engine 34 us for both vectors at H = 5120, with
    everybody waiting; this takes the Vector Engine 9.
    """
    vector = source[section : section + 1, :].broadcast(0, S_TILE // QUADRANT)
    cast_copy(dst=target[0:S_TILE:QUADRANT, :], src=vector)
    nisa.nc_stream_shuffle(dst=target, src=target, shuffle_mask=[0] * QUADRANT)


def tile_modulation(
    buffers: ModulationBuffers, scale: NkiTensor, shift: NkiTensor, first: int, tokens: int, section: int, tile: int
) -> tuple[NkiTensor, NkiTensor]:
    """1 + scale and shift of an S-tile, both [tokens, H]; loads them where tokens have their own."""
    if len(scale.shape) == 2:
        index = section % len(buffers.gains)
        return buffers.gains[index][0:tokens, :], buffers.shifts[index][0:tokens, :]
    index = tile % len(buffers.gains)
    gain = load_rows(buffers.gains[index], scale, first, tokens)
    nisa.tensor_scalar(dst=gain, data=gain, op0=nl.add, operand0=1.0, engine=nisa.engine.vector)
    return gain, load_rows(buffers.shifts[index], shift, first, tokens)

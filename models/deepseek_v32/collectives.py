"""What ranks exchange: sums of their parts, and parts side by side; on one core of each."""

import nki
import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl
from nki.language import NkiTensor


@nki.jit
def all_reduce(part: NkiTensor, ranks: int) -> NkiTensor:
    """The sum of every rank's [n, width], on every rank."""
    total = nl.ndarray(part.shape, dtype=part.dtype, buffer=nl.private_hbm, name="total")
    ncc.all_reduce([staged(part)], [total], everyone(ranks), nl.add)
    return returned(total)


@nki.jit
def all_gather(part: NkiTensor, ranks: int) -> NkiTensor:
    """Every rank's [n, width] below each other in rank order, [ranks * n, width], on every rank."""
    rows, width = part.shape
    joined = nl.ndarray((ranks * rows, width), dtype=part.dtype, buffer=nl.private_hbm, name="joined")
    ncc.all_gather([staged(part)], [joined], everyone(ranks), 0)
    return returned(joined)


def staged(part: NkiTensor) -> NkiTensor:
    """A copy that a collective can read: on the device it takes neither arguments nor results of a kernel."""
    copy = nl.ndarray(part.shape, dtype=part.dtype, buffer=nl.private_hbm, name="staged")
    nisa.dma_copy(dst=copy, src=part)
    return copy


def returned(made: NkiTensor) -> NkiTensor:
    """A copy that the kernel can return."""
    copy = nl.ndarray(made.shape, dtype=made.dtype, buffer=nl.shared_hbm, name="returned")
    nisa.dma_copy(dst=copy, src=made)
    return copy


def everyone(ranks: int) -> ncc.ReplicaGroup:
    """One group of all ranks."""
    members = []
    for rank in range(ranks):
        members.append(rank)
    return ncc.ReplicaGroup([members])

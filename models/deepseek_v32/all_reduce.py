"""Adds up what the ranks of a group have."""

import nki
import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl
from nki.language import NkiTensor


@nki.jit
def all_reduce(part: NkiTensor, ranks: int) -> NkiTensor:
    """The sum of every rank's [n, hidden], on every rank."""
    staged = nl.ndarray(part.shape, dtype=part.dtype, buffer=nl.shared_hbm, name="part_staged")
    nisa.dma_copy(dst=staged, src=part)
    total = nl.ndarray(part.shape, dtype=part.dtype, buffer=nl.shared_hbm, name="total")
    members = []
    for rank in range(ranks):
        members.append(rank)
    ncc.all_reduce([staged], [total], ncc.ReplicaGroup([members]), nl.add)
    return total

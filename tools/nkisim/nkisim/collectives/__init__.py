"""The functions of `nki.collectives`, a file per kind.

A rank is a logical core: under LNC2 its two cores run one program. A collective on tensors in shared HBM is the
rank's: both cores issue it on the same tensors and it takes place once, when both have come to it. On SBUF and
private HBM, which each core has to itself, core 0 meets the other ranks' cores 0 and core 1 their cores 1.
Each core records one instruction per call, on the whole of its operands; `CollectiveDetail.cores` says how many
cores share that work. Reductions run in fp32, in the order of the group, and are rounded once.
"""

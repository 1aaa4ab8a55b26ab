"""Which engine does what more than one can do."""

import nki.isa as nisa
from kernels.qkv_cte.device.config import Flow, ProjectionConfig


def helper(config: ProjectionConfig) -> nisa.engine:
    """Who does the element-wise work in SBUF that the Vector Engine need not: GpSimd, which cannot read PSUM."""
    if config.flow.one_engine:
        return nisa.engine.vector
    return nisa.engine.gpsimd


def by_scalar(flow: Flow, t: int, bank: int) -> bool:
    """Whether the Scalar Engine evicts a bank of an S-tile; neighbours in both directions take turns."""
    every = flow.scalar_every
    return every > 0 and (t + bank) % every == every - 1

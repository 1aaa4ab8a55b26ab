"""The two schedules that the seed calls upstream, as plans that the kernel can run.

Both are made under this kernel's own budget, which is the most favourable one for them: the public kernel reserves
SBUF that it never uses.
"""

from __future__ import annotations

import dataclasses

from common import schedule
from common.hardware import Hardware
from kernels.qkv_cte.device.config import BANK_COLUMNS
from kernels.qkv_cte.planning import plan
from kernels.qkv_cte.planning.dims import Dims
from kernels.qkv_cte.planning.plan import Plan


def pinned(dims: Dims, hardware: Hardware) -> tuple[Plan, ...]:
    """One I-group, so that the width pins the degree; weights all resident or all streamed.

    An output wider than PSUM is cut into sub-calls, each a launch of its own that reads the activations again.

    Returns:
        One plan per sub-call, over consecutive output columns.

    Raises:
        BudgetError: not even one S-tile fits.
    """
    calls = schedule.upstream_sub_calls(hardware, dims.i_banks)
    widths = (min(call.stop * BANK_COLUMNS, dims.width) - call.start * BANK_COLUMNS for call in calls)
    parts = (dataclasses.replace(dims, width=width) for width in widths)
    return tuple(plan.make(part, hardware, schedule.upstream_pinned) for part in parts)


def chunked(dims: Dims, hardware: Hardware) -> tuple[Plan, ...]:
    """The degree of this kernel's own plan, every weight streamed again in every S-block: one call.

    Raises:
        BudgetError: chunk buffers fit at no degree.
    """
    return (plan.make(dims, hardware, schedule.upstream_chunked),)


BASELINES = {"pinned": pinned, "chunked": chunked}
"""By the name that tables and JSON give them."""

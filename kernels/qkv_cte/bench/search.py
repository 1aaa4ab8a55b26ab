"""The search for the plan of least predicted time, for a call of any function of the package; offline, in seconds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import nkisim
from devicetime.predict import predict
from kernels.qkv_cte.host.entries import Entry
from kernels.qkv_cte.planning import policy
from kernels.qkv_cte.planning.plan import Plan


def best(
    entry: Entry, call: Any, *, target: str = "trn3", lnc: int = 2, announce: Callable[[str], object] = str
) -> Plan:
    """The plan whose `choice` every call of these sizes may take.

    Args:
        entry: `host.entry.ENTRY` for `qkv`, `host.shim.ENTRY` for `row_mx_qkv_proj`.
        call: the record of its arguments, on the CPU; values are checked, and nothing is computed with them.
        target, lnc: as for the function.
        announce: told what is tried next.

    Raises:
        TypeError, ValueError: as the function.
    """
    prepared = entry.prepare(dataclasses.replace(call, choice=None, replica_groups=None), target=target, lnc=lnc)

    def time_of(made: Plan) -> float:
        return predicted_ns(entry, made, prepared.tensors)

    return policy.best(prepared.plan, time_of=time_of, announce=announce)


def predicted_ns(entry: Entry, made: Plan, tensors: dict[str, Any]) -> float:
    """Predicted time of a plan on one rank.

    Args:
        entry: whose kernel.
        made: the plan.
        tensors: the kernel's arguments but `config`.
    """
    options = nkisim.Options(target=made.hardware.name, numerics=False)
    finished = nkisim.run(entry.kernel[made.dims.cores], config=made.config, **tensors, options=options)
    return predict(finished, made.hardware).total_ns

"""`nl.device_print`."""

from __future__ import annotations

from nkisim import machine
from nkisim.errors import ArgumentError
from nkisim.isa import rules
from nkisim.tensor import NkiTensor


def device_print(print_prefix: str, tensor: NkiTensor) -> None:
    """Prints the prefix, then the tensor with its name, shape, type, place and values, to standard output.

    On several cores the core's number comes first. Elements that nothing has written print as the poison they hold.

    Args:
        print_prefix: a string known when the kernel is traced.
        tensor: a tile in SBUF or a tensor in HBM.

    Raises:
        ArgumentError: the prefix is no string; WrongBufferError: the tensor lies in PSUM.
    """
    call = "nl.device_print"
    core = machine.core(call)
    rules.require_tensors(call, tensor=tensor)
    if not isinstance(print_prefix, str):
        raise ArgumentError(f"{call}: print_prefix {print_prefix!r}; accepted: a string")
    rules.buffer(call, "tensor", tensor, (rules.SBUF, *rules.HBM))
    who = f"core {core.program_id}: " if core.launch.num_programs > 1 else ""
    print(f"{who}{print_prefix} {tensor!r}", flush=True)

"""What a simulation does, in one record."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

TARGETS = {"trn2": "trn2", "gen3": "trn2", "trn3": "trn3", "gen4": "trn3"}
DEFAULT_TARGET = "trn3"
_TARGET_VARIABLE = "NEURON_PLATFORM_TARGET_OVERRIDE"
_PRECISE_VARIABLE = "NKI_PRECISE_FP"


def precise_of_environment() -> bool:
    """What NKI_PRECISE_FP asks for; values as the chip has them where it is unset, as the SDK has it.

    Raises:
        ValueError: it is neither 0 nor 1.
    """
    given = os.environ.get(_PRECISE_VARIABLE) or "1"
    if given not in ("0", "1"):
        raise ValueError(
            f"{_PRECISE_VARIABLE}={given}; accepted: 0 (unrounded fp32 values) or 1 (values rounded as on the device)"
        )
    return given == "1"


def target_of_environment() -> str:
    """The target that NEURON_PLATFORM_TARGET_OVERRIDE names; trn3 where it is unset, as the SDK has it."""
    return os.environ.get(_TARGET_VARIABLE) or DEFAULT_TARGET


@dataclass(frozen=True)
class Options:
    """Options of one launch.

    Attributes:
        target: "trn2" or "trn3" ("gen3" and "gen4" name the same). Default: NEURON_PLATFORM_TARGET_OVERRIDE, else trn3.
        numerics: compute values. Default True; without, a run records the same instructions and holds no data, and
            arguments may be torch tensors on the `meta` device.
        decode_cache_bytes: bound on the operands kept decoded for the Tensor Engine. Default 512 MiB.
        precise: round values to the types of the tensors that hold them, as the chip does. Default: NKI_PRECISE_FP,
            else True. Without, an fp32 number stands behind each; see `nkisim.precision`.
        rank_timeout_seconds: how long a rank in one process waits for a rank in another before it gives up. Default 20;
            raise it where ranks compute for longer between two collectives.
    """

    target: str = field(default_factory=target_of_environment)
    numerics: bool = True
    decode_cache_bytes: int = 512 << 20
    precise: bool = field(default_factory=precise_of_environment)
    rank_timeout_seconds: float = 20.0

    def __post_init__(self) -> None:
        if self.target not in TARGETS:
            raise ValueError(f"target {self.target!r}; accepted: {', '.join(TARGETS)}")
        object.__setattr__(self, "target", TARGETS[self.target])
        for flag in ("numerics", "precise"):
            if not isinstance(getattr(self, flag), bool):
                raise TypeError(f"{flag} {getattr(self, flag)!r}; accepted: True or False")
        if type(self.decode_cache_bytes) is not int or self.decode_cache_bytes < 0:
            raise ValueError(f"decode_cache_bytes {self.decode_cache_bytes!r}; accepted: an integer, 0 and up")
        seconds = self.rank_timeout_seconds
        if not isinstance(seconds, (int, float)) or not 0 < seconds < float("inf"):
            raise ValueError(f"rank_timeout_seconds {seconds!r}; accepted: above 0, finite")

"""A kernel, its configuration and host code beside it, in which nkilint finds nothing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from nki.language import NKIObject, NkiTensor


class Activation(Enum):
    """What is applied."""

    RELU = 1
    NONE = 2


@dataclass
class Config(NKIObject):
    """Options of the kernel."""

    rows: int
    activation: Activation = Activation.NONE


@nki.jit
def scale(x: NkiTensor, config: Config, factors: tuple[float, ...] = (1.0, 2.0)) -> NkiTensor:
    """`x` times the product of `factors`, row block by row block."""
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm, name=f"scaled_{x.shape[0]}")
    options = {"rows": config.rows}
    for start in range(0, x.shape[0], options["rows"]):
        tile = nl.load(x[start : start + config.rows])
        for factor in factors:
            nisa.tensor_scalar(tile, tile, nl.multiply, factor)
        if config.activation == Activation.RELU:
            nisa.activation(tile, nl.relu, tile)
        nl.store(out[start : start + config.rows], tile)
    return out


def run(values: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
    """Host code may say what kernels may not."""
    try:
        return {key: scale(array, Config(128)) for key, array in values.items()}
    except ValueError as error:
        raise RuntimeError(f"cannot scale {sorted(values)}") from error

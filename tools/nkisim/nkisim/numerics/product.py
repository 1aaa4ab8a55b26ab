"""Matrix products with fp32 accumulation."""

from __future__ import annotations

import numpy as np
import torch

_FEW_COLUMNS = 16
"""Up to here the library would go on from `target` term by term, in one chain over all products of a group."""


def accumulate(stationary: np.ndarray, moving: np.ndarray, target: np.ndarray, onto: bool) -> None:
    """`target = stationary.T @ moving`, or `target +=` that: the array sums the rows of a product, PSUM adds the sum.

    Args:
        stationary: fp32 [K, M]; moving: fp32 [K, N].
        target: fp32 [M, N], written in place.
        onto: add to what is there.
    """
    result = torch.from_numpy(target)
    left, right = torch.from_numpy(stationary).t(), torch.from_numpy(moving)
    if not onto:
        torch.mm(left, right, out=result)
    elif moving.shape[1] <= _FEW_COLUMNS:
        result += torch.mm(left, right)
    else:
        torch.addmm(result, left, right, out=result)

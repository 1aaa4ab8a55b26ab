"""Matrix products with fp32 accumulation."""

from __future__ import annotations

import numpy as np
import torch


def accumulate(stationary: np.ndarray, moving: np.ndarray, target: np.ndarray, onto: bool) -> None:
    """`target = stationary.T @ moving`, or `target +=` that.

    Args:
        stationary: fp32 [K, M]; moving: fp32 [K, N].
        target: fp32 [M, N], written in place.
        onto: add to what is there.
    """
    result = torch.from_numpy(target)
    left, right = torch.from_numpy(stationary).t(), torch.from_numpy(moving)
    if onto:
        torch.addmm(result, left, right, out=result)
    else:
        torch.mm(left, right, out=result)

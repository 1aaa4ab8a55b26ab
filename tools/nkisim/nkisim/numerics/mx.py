"""Block scales of the MX formats: 32 elements share one power of two."""

from __future__ import annotations

import numpy as np

from nkisim.dtypes import DType, float8_e4m3fn_x4, float8_e5m2_x4
from nkisim.numerics import cast

LANES = 4
GROUP_PARTITIONS = 8
NAN_SCALE = 255

_LARGEST = {float8_e4m3fn_x4: (8, 448.0), float8_e5m2_x4: (15, 57344.0)}
"""Exponent of the largest number, and that number."""

_MANTISSA_BITS = 23


def quantize(values: np.ndarray, kind: DType) -> tuple[np.ndarray, np.ndarray]:
    """fp8 codes and e8m0 scales of fp32 values, in blocks of 8 partitions x 4 elements.

    The scale is 2 ** (floor(log2(largest magnitude)) - exponent of the type's largest number), at least 2 ** -127;
    elements are divided by it (by 2 ** -126 where it is 2 ** -127, which fp32 holds as a subnormal only), rounded to
    nearest even and saturated. A block with a NaN gets the scale NaN; infinity saturates.

    Args:
        values: fp32 [partitions, free], multiples of 8 and 4.
        kind: float8_e4m3fn_x4 or float8_e5m2_x4.

    Returns:
        uint32 words [partitions, free / 4], lane 0 in the lowest byte; uint8 scales [partitions / 8, free / 4].
    """
    assert kind.lane is not None
    partitions, free = values.shape
    exponent, largest = _LARGEST[kind]
    blocks = values.reshape(partitions // GROUP_PARTITIONS, GROUP_PARTITIONS, free // LANES, LANES)
    peaks = np.abs(blocks).max(axis=(1, 3))
    biased = (peaks.view(np.uint32) >> np.uint32(_MANTISSA_BITS)).astype(np.int32)
    scales = np.where(np.isnan(peaks), NAN_SCALE, np.maximum(biased - exponent, 0)).astype(np.uint8)
    divisors = (np.maximum(scales, 1).astype(np.uint32) << np.uint32(_MANTISSA_BITS)).view(np.float32)
    with np.errstate(invalid="ignore"):
        scaled = (blocks / divisors[:, None, :, None]).reshape(partitions, free)
    codes = np.empty((partitions, free), kind.lane.storage)
    cast.store(codes, scaled.clip(-largest, largest), kind.lane)
    return codes.view(kind.storage), scales

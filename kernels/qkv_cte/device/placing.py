"""SBUF tensors where the plan has them."""

import nki.language as nl
from kernels.qkv_cte.device.config import ProjectionConfig
from nki.language import NkiTensor


def place(config: ProjectionConfig, name: str, shape: tuple[int, ...], dtype: str) -> NkiTensor:
    """An SBUF tensor at its address of the plan."""
    return nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf, name=name, address=(0, config.addresses[name]))

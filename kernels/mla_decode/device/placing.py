"""On-chip tensors where the plan has them."""

import nki.language as nl
from kernels.mla_decode.device.config import BANK_BYTES, AttentionConfig
from nki.language import NkiTensor


def rotating(config: AttentionConfig, name: str, count: int, shape: tuple[int, ...], dtype: str) -> list[NkiTensor]:
    """`count` buffers of one kind."""
    buffers = []
    for i in range(count):
        buffers.append(place(config, f"{name}_{i}", shape, dtype))
    return buffers


def place(config: AttentionConfig, name: str, shape: tuple[int, ...], dtype: str) -> NkiTensor:
    """An SBUF tensor at its address of the plan."""
    return nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf, name=name, address=(0, config.addresses[name]))


def bank(config: AttentionConfig, name: str, shape: tuple[int, ...], dtype: str) -> NkiTensor:
    """A PSUM tensor from the start of its bank of the plan. It has no name: other tensors will have the same bank."""
    return nl.ndarray(shape, dtype=dtype, buffer=nl.psum, address=(0, config.banks[name] * BANK_BYTES))

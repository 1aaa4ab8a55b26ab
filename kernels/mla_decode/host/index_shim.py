"""The device's prior index as torch calls it."""

from __future__ import annotations

import torch

from common import hardware
from kernels.mla_decode.device.index_kernel import IndexConfig, prior_index
from kernels.mla_decode.host.launch import launch
from kernels.mla_decode.host.tables import LAST_POSITION, PARTITIONS, PriorIndex, require_selection

LARGEST_N_PRIOR = PARTITIONS * PARTITIONS


@torch.no_grad()
def build_prior_index_on_device(
    selected: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    n_rows: int,
    n_prior: int,
    *,
    target: str = "trn2",
) -> PriorIndex:
    """`build_prior_index` as a kernel, where the selection is on the device already. The same tables, bit for bit.

    Args:
        selected, positions, block_table: as for `build_prior_index`, int32, on one device.
        block_size: a power of two.
        n_rows: up to 2**24, and so the entries of block_table together; n_prior: up to 16384.
        target: "trn2" or "trn3".

    Raises:
        TypeError, ValueError: naming the argument, what it is and what is accepted.
    """
    require_selection(selected, positions, block_table, block_size, n_rows, n_prior)
    chip = hardware.get(target)
    tensors = {"selected": selected, "positions": positions, "block_table": block_table}
    for name, tensor in tensors.items():
        if tensor.dtype is not torch.int32:
            raise TypeError(f"{name} is {tensor.dtype}; accepted on the device: torch.int32")
    if block_size & (block_size - 1):
        raise ValueError(f"block_size is {block_size}; accepted on the device: a power of two")
    for name, value, most in (
        ("n_rows", n_rows, LAST_POSITION),
        ("n_prior", n_prior, LARGEST_N_PRIOR),
        ("the number of entries of block_table", block_table.numel(), LAST_POSITION // 2),
    ):
        if value > most:
            raise ValueError(f"{name} is {value}; accepted on the device: up to {most}")
    tokens, width = selected.shape
    config = IndexConfig(tokens, width, n_prior, block_size, block_size.bit_length() - 1, n_rows)
    operands = (selected.contiguous(), positions.contiguous(), block_table.contiguous(), config)
    return PriorIndex(*launch(prior_index, operands, selected.device, chip.name))

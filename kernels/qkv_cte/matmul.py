"""The products of one I-group."""

from dataclasses import dataclass

import nki.isa as nisa
from kernels.qkv_cte.buffers import Buffers
from kernels.qkv_cte.config import IGroup, ProjectionConfig, SBlock
from kernels.qkv_cte.tiling import bank_columns, even, tile_tokens
from nki.language import NKIObject, NkiTensor


@dataclass
class GroupOperands(NKIObject):
    """What the products of an I-group share over all H-tiles; made once per group.

    Attributes:
        targets: for each S-tile of the block, the part of each bank that its product fills.
        stationary_scales: neutral block scales for the columns of each S-tile.
        moving_scales: neutral block scales for the columns of each bank.
    """

    targets: list[list[NkiTensor]]
    stationary_scales: list[NkiTensor]
    moving_scales: list[NkiTensor]


def group_operands(config: ProjectionConfig, buffers: Buffers, block: SBlock, group: IGroup) -> GroupOperands:
    """Views of the banks and block scales of a group. Scale tiles are whole: a short H-tile reads the rows it needs."""
    moving_scales = []
    for b in range(group.num_banks):
        width = bank_columns(config, group.first_bank + b)[1]
        moving_scales.append(buffers.mx_scale[:, 0:width])
    targets, stationary_scales = [], []
    for t in range(block.num_tiles):
        columns = even(tile_tokens(config, block.first_tile + t)[1])
        stationary_scales.append(buffers.mx_scale[:, 0:columns])
        row = []
        for b in range(group.num_banks):
            width = moving_scales[b].shape[1]
            row.append(buffers.banks[t * group.num_banks + b][0:columns, 0:width])
        targets.append(row)
    return GroupOperands(targets=targets, stationary_scales=stationary_scales, moving_scales=moving_scales)


def multiply(stationary: list[list[NkiTensor]], moving: list[NkiTensor], operands: GroupOperands, h: int) -> None:
    """One H-tile's share of every bank: the activations of an S-tile stay in place over the group's banks.

    targets[t][b] += stationary[t][h].T @ moving[b]
    """
    for t in range(len(operands.targets)):
        for b in range(len(moving)):
            nisa.nc_matmul_mx(
                dst=operands.targets[t][b],
                stationary=stationary[t][h],
                moving=moving[b],
                stationary_scale=operands.stationary_scales[t],
                moving_scale=operands.moving_scales[b],
                accumulate=h > 0,
            )

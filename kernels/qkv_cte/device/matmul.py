"""The products of one I-group."""

from dataclasses import dataclass

import nki.isa as nisa
from kernels.qkv_cte.device.activations import Stationary
from kernels.qkv_cte.device.block_scales import scales_of
from kernels.qkv_cte.device.buffers import Buffers
from kernels.qkv_cte.device.config import PLAIN, ROW_MX, IGroup, ProjectionConfig, SBlock
from kernels.qkv_cte.device.tiling import bank_columns, count_h_tiles, even, multiplied_tokens, tile_tokens
from nki.language import NKIObject, NkiTensor


@dataclass
class GroupOperands(NKIObject):
    """What the products of an I-group share over all H-tiles; made once per group.

    Attributes:
        targets: for each S-tile of the block, the part of each bank that its product fills.
        stationary_scales: for each S-tile, block scales for each H-tile; empty for unquantised operands.
        moving_scales: for each H-tile, block scales for the columns of each bank; likewise.
    """

    targets: list[list[NkiTensor]]
    stationary_scales: list[list[NkiTensor]]
    moving_scales: list[list[NkiTensor]]


def group_operands(
    config: ProjectionConfig, buffers: Buffers, stationary: Stationary, block: SBlock, group: IGroup
) -> GroupOperands:
    """Views of the banks and block scales of a group. Scale tiles are whole: a short H-tile reads the rows it needs."""
    widths = []
    for b in range(group.num_banks):
        widths.append(bank_columns(config, group.first_bank + b)[1])
    targets = []
    for t in range(block.num_tiles):
        columns = multiplied_tokens(config, tile_tokens(config, block.first_tile + t)[1])
        row = []
        for b in range(group.num_banks):
            row.append(buffers.banks[t * group.num_banks + b][0:columns, 0 : widths[b]])
        targets.append(row)
    stationary_scales = stationary.scales
    if config.format.name == ROW_MX:
        stationary_scales = neutral_stationary_scales(config, buffers, block)
    moving_scales = moving_block_scales(config, buffers, group, widths)
    return GroupOperands(targets=targets, stationary_scales=stationary_scales, moving_scales=moving_scales)


def neutral_stationary_scales(config: ProjectionConfig, buffers: Buffers, block: SBlock) -> list[list[NkiTensor]]:
    """Scales of 2**0 for the columns of each S-tile, the same for all H-tiles."""
    scales: list[list[NkiTensor]] = []
    if buffers.mx_scale == None:
        return scales
    for t in range(block.num_tiles):
        columns = even(tile_tokens(config, block.first_tile + t)[1])
        scales.append([buffers.mx_scale[:, 0:columns]] * count_h_tiles(config))
    return scales


def moving_block_scales(
    config: ProjectionConfig, buffers: Buffers, group: IGroup, widths: list[int]
) -> list[list[NkiTensor]]:
    """Block scales of the weights of a group, for each H-tile and bank; with ROW_MX all are 2**0."""
    scales: list[list[NkiTensor]] = []
    if buffers.mx_scale == None:
        return scales
    if config.format.name == ROW_MX:
        neutral = []
        for width in widths:
            neutral.append(buffers.mx_scale[:, 0:width])
        return [neutral] * count_h_tiles(config)
    for h in range(count_h_tiles(config)):
        of_h_tile = scales_of(config, buffers.mx_scale, h)
        banks = []
        for b in range(group.num_banks):
            first, width = bank_columns(config, group.first_bank + b)
            banks.append(of_h_tile[:, first : first + width])
        scales.append(banks)
    return scales


def multiply(
    config: ProjectionConfig, stationary: Stationary, moving: list[NkiTensor], operands: GroupOperands, h: int
) -> None:
    """One H-tile's share of every bank: the activations of an S-tile stay in place over the group's banks.

    targets[t][b] += stationary[t][h].T @ moving[b]
    """
    plain = config.format.name == PLAIN
    for t in range(len(operands.targets)):
        for b in range(len(operands.targets[t])):
            if plain:
                nisa.nc_matmul(
                    dst=operands.targets[t][b],
                    stationary=stationary.activations[t][h],
                    moving=moving[b],
                    accumulate=h > 0,
                )
            else:
                nisa.nc_matmul_mx(
                    dst=operands.targets[t][b],
                    stationary=stationary.activations[t][h],
                    moving=moving[b],
                    stationary_scale=operands.stationary_scales[t][h],
                    moving_scale=operands.moving_scales[h][b],
                    accumulate=h > 0,
                )

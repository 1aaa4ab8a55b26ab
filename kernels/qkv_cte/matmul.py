"""The products of one I-group."""

import nki.isa as nisa
from kernels.qkv_cte.buffers import Buffers
from kernels.qkv_cte.config import IGroup, ProjectionConfig, SBlock
from kernels.qkv_cte.tiling import bank_columns, even, tile_tokens
from nki.language import NkiTensor


def group_targets(config: ProjectionConfig, buffers: Buffers, block: SBlock, group: IGroup) -> list[list[NkiTensor]]:
    """For each S-tile of a block, the part of each bank of a group that its product fills."""
    targets = []
    for t in range(block.num_tiles):
        columns = even(tile_tokens(config, block.first_tile + t)[1])
        row = []
        for b in range(group.num_banks):
            width = bank_columns(config, group.first_bank + b)[1]
            row.append(buffers.banks[t * group.num_banks + b][0:columns, 0:width])
        targets.append(row)
    return targets


def multiply(
    buffers: Buffers,
    stationary: list[list[NkiTensor]],
    moving: list[NkiTensor],
    targets: list[list[NkiTensor]],
    h: int,
) -> None:
    """One H-tile's share of every bank: the activations of an S-tile stay in place over the group's banks.

    targets[t][b] += stationary[t][h].T @ moving[b]
    """
    height = moving[0].shape[0]
    moving_scales = []
    for bank in moving:
        moving_scales.append(buffers.mx_scale[0:height, 0 : bank.shape[1]])
    for t in range(len(targets)):
        activations = stationary[t][h]
        scales = buffers.mx_scale[0:height, 0 : activations.shape[1]]
        for b in range(len(moving)):
            nisa.nc_matmul_mx(
                dst=targets[t][b],
                stationary=activations,
                moving=moving[b],
                stationary_scale=scales,
                moving_scale=moving_scales[b],
                accumulate=h > 0,
            )

"""All instructions that a kernel is drawn from."""

from __future__ import annotations

from collections.abc import Callable

from fuzz import copies, dma, elementwise, loops, mx, patterns, reductions, tensor_engine
from fuzz.session import Session

INSTRUCTIONS: tuple[Callable[[Session], None], ...] = (
    copies.at_register,
    copies.memset,
    copies.tensor_copy,
    copies.tensor_copy_predicated,
    dma.added_rows,
    dma.dma_compute,
    dma.dma_copy,
    dma.dma_transpose,
    dma.gather,
    dma.gathered_transpose,
    dma.scatter,
    elementwise.activation,
    elementwise.reciprocal,
    elementwise.scalar_tensor_tensor,
    elementwise.tensor_scalar,
    elementwise.tensor_scalar_bits,
    elementwise.tensor_tensor,
    elementwise.tensor_tensor_bits,
    loops.copy_columns,
    loops.repeat,
    loops.through_register,
    mx.nc_matmul_mx,
    mx.quantize_mx,
    patterns.affine_select,
    patterns.iota,
    reductions.max8,
    reductions.tensor_partition_reduce,
    reductions.tensor_reduce,
    reductions.tensor_tensor_scan,
    tensor_engine.nc_matmul,
    tensor_engine.nc_transpose,
)

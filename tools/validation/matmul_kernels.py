"""The matrix products of the vendor's optimisation tutorial, rebuilt from the loads and loops that it describes.

C[M, N] = A[M, K] @ B[K, N] in fp32, A given transposed, in products of 128 x 128 by 128 x 512.
"""

import nki
import nki.isa as nisa
import nki.language as nl
from nki.language import NkiTensor

ROWS = 128
COLUMNS = 512

M_TILES_OF_BLOCK = 16
N_TILES_OF_BLOCK = 2
K_TILES_OF_BLOCK = 8


@nki.jit
def load_for_every_product(lhs_t: NkiTensor, rhs: NkiTensor) -> NkiTensor:
    """Version 2: both operands of each product are loaded for it."""
    depth, rows, columns = lhs_t.shape[0], lhs_t.shape[1], rhs.shape[1]
    out = nl.ndarray((rows, columns), dtype=lhs_t.dtype, buffer=nl.shared_hbm)
    for m in range(rows // ROWS):
        for n in range(columns // COLUMNS):
            total = nl.ndarray((ROWS, COLUMNS), dtype=nl.float32, buffer=nl.psum)
            for k in range(depth // ROWS):
                left = load(lhs_t, k, m * ROWS, ROWS)
                right = load(rhs, k, n * COLUMNS, COLUMNS)
                nisa.nc_matmul(dst=total, stationary=left, moving=right, accumulate=k > 0)
            store(out, total, m, n)
    return out


@nki.jit
def hoist_loads(lhs_t: NkiTensor, rhs: NkiTensor) -> NkiTensor:
    """Version 3: a row of A's tiles is loaded once, a column of B's for each row."""
    depth, rows, columns = lhs_t.shape[0], lhs_t.shape[1], rhs.shape[1]
    k_tiles = depth // ROWS
    out = nl.ndarray((rows, columns), dtype=lhs_t.dtype, buffer=nl.shared_hbm)
    for m in range(rows // ROWS):
        left = load_tiles(lhs_t, 0, k_tiles, m * ROWS, ROWS)
        for n in range(columns // COLUMNS):
            right = load_tiles(rhs, 0, k_tiles, n * COLUMNS, COLUMNS)
            total = nl.ndarray((ROWS, COLUMNS), dtype=nl.float32, buffer=nl.psum)
            for k in range(k_tiles):
                nisa.nc_matmul(dst=total, stationary=left[k], moving=right[k], accumulate=k > 0)
            store(out, total, m, n)
    return out


@nki.jit
def block_all(lhs_t: NkiTensor, rhs: NkiTensor) -> NkiTensor:
    """Version 5: blocks of 16 x 2 x 8 tiles, results of a block column kept in SBUF and added up there.

    The tutorial keeps 224 KiB of each partition, more than kernels may use, and spills. Here A's blocks are loaded
    in halves, which moves the same bytes and fits.
    """
    depth, rows, columns = lhs_t.shape[0], lhs_t.shape[1], rhs.shape[1]
    half = M_TILES_OF_BLOCK // 2
    out = nl.ndarray((rows, columns), dtype=lhs_t.dtype, buffer=nl.shared_hbm)
    for n_block in range(columns // COLUMNS // N_TILES_OF_BLOCK):
        first_column = n_block * N_TILES_OF_BLOCK * COLUMNS
        results = []
        for _m in range(rows // ROWS):
            result = nl.ndarray((ROWS, N_TILES_OF_BLOCK * COLUMNS), dtype=nl.float32, buffer=nl.sbuf)
            nisa.memset(dst=result, value=0.0)
            results.append(result)
        for k_block in range(depth // ROWS // K_TILES_OF_BLOCK):
            k = k_block * K_TILES_OF_BLOCK
            right = load_tiles(rhs, k, K_TILES_OF_BLOCK, first_column, N_TILES_OF_BLOCK * COLUMNS)
            for m_block in range(rows // ROWS // half):
                left = load_tiles(lhs_t, k, K_TILES_OF_BLOCK, m_block * half * ROWS, half * ROWS)
                for m in range(half):
                    add_products(results[m_block * half + m], left, right, m)
        for m in range(rows // ROWS):
            columns_of_block = out[m * ROWS : (m + 1) * ROWS, first_column : first_column + N_TILES_OF_BLOCK * COLUMNS]
            nisa.dma_copy(dst=columns_of_block, src=results[m])
    return out


def add_products(result: NkiTensor, left: list[NkiTensor], right: list[NkiTensor], m: int) -> None:
    """result += left.T @ right, over a block's K tiles"""
    for n in range(N_TILES_OF_BLOCK):
        total = nl.ndarray((ROWS, COLUMNS), dtype=nl.float32, buffer=nl.psum)
        for k in range(len(left)):
            nisa.nc_matmul(
                dst=total,
                stationary=left[k][:, m * ROWS : (m + 1) * ROWS],
                moving=right[k][:, n * COLUMNS : (n + 1) * COLUMNS],
                accumulate=k > 0,
            )
        target = result[:, n * COLUMNS : (n + 1) * COLUMNS]
        nisa.tensor_tensor(dst=target, data1=target, data2=total, op=nl.add)


def load_tiles(source: NkiTensor, first: int, count: int, column: int, columns: int) -> list[NkiTensor]:
    """`count` tiles of 128 rows from tile `first` on."""
    tiles = []
    for tile in range(first, first + count):
        tiles.append(load(source, tile, column, columns))
    return tiles


def load(source: NkiTensor, tile: int, column: int, columns: int) -> NkiTensor:
    """One tile of 128 rows, its descriptors made by GpSimd as in the published profiles."""
    made = nl.ndarray((ROWS, columns), dtype=source.dtype, buffer=nl.sbuf)
    rows = source[tile * ROWS : (tile + 1) * ROWS, column : column + columns]
    nisa.dma_copy(dst=made, src=rows, dge_mode=nisa.dge_mode.swdge)
    return made


def store(out: NkiTensor, total: NkiTensor, m: int, n: int) -> None:
    """A finished tile of the result."""
    made = nl.ndarray((ROWS, COLUMNS), dtype=out.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=made, src=total, engine=nisa.engine.vector)
    nisa.dma_copy(dst=out[m * ROWS : (m + 1) * ROWS, n * COLUMNS : (n + 1) * COLUMNS], src=made)

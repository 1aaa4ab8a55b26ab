"""The prior index on the device: the same tables as `host.tables.build_prior_index`, bit-identical."""

from dataclasses import dataclass

import nki
import nki.isa as nisa
import nki.language as nl
from kernels.mla_decode.device.config import P_MAX
from kernels.mla_decode.device.tiling import count_tiles
from nki.language import NKIObject, NkiTensor


@dataclass(frozen=True)
class IndexConfig(NKIObject):
    """Sizes of an index.

    Attributes:
        n_tokens, width: of the selection; n_prior: keys per token of the tables, from `width`.
        block_size: rows of a cache page, `2 ** block_shift`.
        n_rows: rows of the cache.
    """

    n_tokens: int
    width: int
    n_prior: int
    block_size: int
    block_shift: int
    n_rows: int


@nki.jit
def prior_index(
    selected: NkiTensor, positions: NkiTensor, block_table: NkiTensor, config: IndexConfig
) -> tuple[NkiTensor, NkiTensor, NkiTensor]:
    """Turns selected positions into the attention's tables.

    Dimensions:
        n_tokens: any; width: selected keys per token, up to n_prior; n_prior: up to 16,384, T = ceil(n_prior / 128).
        max_blocks: pages per token; n_tokens * max_blocks up to 2**23.

    Args:
        selected: [n_tokens, width] int32; positions: [n_tokens] int32; block_table: [n_tokens, max_blocks] int32.
        config: sizes.

    Returns:
        prior_rows int32, prior_key_pos float32, prior_rows_natural uint32, [128, n_tokens, T] each.

    Notes:
        Tensors have no addresses; the compiler places them, and there is no plan. Nothing else is on the core: at most
        4 * width + 512 or 3,072 bytes per partition, a third of SBUF, and one PSUM bank are in use at once.
        Numbers are fp32, exact up to 2**24; what lies beyond is no position and no page, and stays beyond when
        rounded. A page is looked up by an indirect DMA of 4 bytes, the smallest there is: 128 T of them per token.

    Pseudocode:
        valid = 0 <= key < own, and key's page is in the table
        page = block_table[key >> shift] where valid, else -1;  kept = 0 <= page < pages
        row = page * block_size + key % block_size where kept, else n_rows
        position = key where kept, else own
    """
    tokens, tiles = config.n_tokens, count_tiles(config.n_prior, P_MAX)
    shape = (P_MAX, tokens, tiles)
    rows_out = nl.ndarray(shape, dtype=nl.int32, buffer=nl.shared_hbm, name="prior_rows")
    positions_out = nl.ndarray(shape, dtype=nl.float32, buffer=nl.shared_hbm, name="prior_key_pos")
    natural_out = nl.ndarray(shape, dtype=nl.uint32, buffer=nl.shared_hbm, name="prior_rows_natural")
    together = P_MAX // tiles
    for first in range(0, tokens, together):
        count = min(together, tokens - first)
        keys = load_keys(config, selected, first, count, tiles)
        own = nl.ndarray((P_MAX, count, 1), dtype=nl.float32, buffer=nl.sbuf)
        row = positions.reshape((1, tokens))[:, first : first + count]
        nisa.dma_copy(dst=own, src=row.broadcast(0, P_MAX))
        own = own.broadcast(2, tiles)
        valid = within(keys, 0.0, float(block_table.shape[1] * config.block_size))
        before = like(keys, nl.float32)
        nisa.tensor_tensor(dst=before, data1=keys, data2=own, op=nl.less, engine=nisa.engine.vector)
        nisa.tensor_tensor(dst=valid, data1=valid, data2=before, op=nl.multiply, engine=nisa.engine.vector)
        pages, offsets = look_up(config, keys, valid, block_table, first)
        kept = within(pages, 0.0, float(config.n_rows // config.block_size))
        rows = like(keys, nl.float32)
        nisa.scalar_tensor_tensor(
            dst=rows, data=pages, op0=nl.multiply, operand0=float(config.block_size), op1=nl.add, operand1=offsets
        )
        nisa.scalar_tensor_tensor(
            dst=rows, data=rows, op0=nl.subtract, operand0=float(config.n_rows), op1=nl.multiply, operand1=kept
        )
        nisa.tensor_scalar(dst=rows, data=rows, op0=nl.add, operand0=float(config.n_rows), engine=nisa.engine.vector)
        key_positions = like(keys, nl.float32)
        nisa.tensor_tensor(dst=key_positions, data1=keys, data2=own, op=nl.subtract, engine=nisa.engine.vector)
        nisa.tensor_tensor(
            dst=key_positions, data1=key_positions, data2=kept, op=nl.multiply, engine=nisa.engine.vector
        )
        nisa.tensor_tensor(dst=key_positions, data1=key_positions, data2=own, op=nl.add, engine=nisa.engine.vector)
        nisa.dma_copy(dst=positions_out[:, first : first + count, :], src=key_positions)
        nisa.dma_copy(dst=natural_out[:, first : first + count, :], src=cast(rows, nl.uint32))
        for token in range(count):
            nisa.dma_copy(dst=rows_out[:, first + token, :], src=consumption_order(rows[:, token, :]))
    return rows_out, positions_out, natural_out


def like(tensor: NkiTensor, dtype: str) -> NkiTensor:
    """A tile of the same shape in SBUF."""
    return nl.ndarray(tensor.shape, dtype=dtype, buffer=nl.sbuf)


def cast(tensor: NkiTensor, dtype: str) -> NkiTensor:
    """The same numbers in another type."""
    made = like(tensor, dtype)
    nisa.tensor_copy(dst=made, src=tensor, engine=nisa.engine.vector)
    return made


def within(values: NkiTensor, lowest: float, end: float) -> NkiTensor:
    """1.0 where lowest <= value < end, else 0.0."""
    found, below = like(values, nl.float32), like(values, nl.float32)
    nisa.tensor_scalar(dst=found, data=values, op0=nl.greater_equal, operand0=lowest, engine=nisa.engine.vector)
    nisa.tensor_scalar(dst=below, data=values, op0=nl.less, operand0=end, engine=nisa.engine.vector)
    nisa.tensor_tensor(dst=found, data1=found, data2=below, op=nl.multiply, engine=nisa.engine.vector)
    return found


def load_keys(config: IndexConfig, selected: NkiTensor, first: int, count: int, tiles: int) -> NkiTensor:
    """keys[p, t, tile] = selected[first + t, 128 tile + p], -1 behind the selection's width; fp32."""
    loaded = nl.ndarray((count, config.width), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=loaded, src=selected[first : first + count, :])
    keys = nl.ndarray((P_MAX, count, tiles), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=keys, value=-1.0, engine=nisa.engine.gpsimd)
    for tile in range(count_tiles(config.width, P_MAX)):
        start = tile * P_MAX
        width = min(P_MAX, config.width - start)
        turned = nl.ndarray((width, count), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_transpose(dst=turned, data=loaded[:, start : start + width], engine=nisa.engine.tensor)
        nisa.tensor_copy(dst=keys[0:width, :, tile], src=turned, engine=nisa.engine.vector)
    return keys


def look_up(
    config: IndexConfig, keys: NkiTensor, valid: NkiTensor, block_table: NkiTensor, first: int
) -> tuple[NkiTensor, NkiTensor]:
    """Pages of valid keys, -1 elsewhere, and the keys' rows in their pages; fp32, in the shape of `keys`."""
    tokens, per_token = block_table.shape
    count, tiles = keys.shape[1], keys.shape[2]
    columns = count * tiles
    safe = like(keys, nl.int32)
    nisa.tensor_tensor(dst=safe, data1=keys, data2=valid, op=nl.multiply, engine=nisa.engine.vector)
    offsets, entries = like(keys, nl.int32), like(keys, nl.int32)
    nisa.tensor_scalar(
        dst=offsets, data=safe, op0=nl.bitwise_and, operand0=config.block_size - 1, engine=nisa.engine.vector
    )
    nisa.tensor_scalar(
        dst=entries, data=safe, op0=nl.right_shift, operand0=config.block_shift, engine=nisa.engine.vector
    )
    places, beyond = like(keys, nl.float32), like(keys, nl.float32)
    for token in range(count):
        start = float((first + token) * per_token)
        nisa.tensor_scalar(
            dst=places[:, token, :], data=entries[:, token, :], op0=nl.add, operand0=start, engine=nisa.engine.vector
        )
    # What is not valid looks behind the table, where the gather skips it.
    end = float(tokens * per_token)
    nisa.tensor_scalar(
        dst=beyond, data=valid, op0=nl.multiply, operand0=-end, op1=nl.add, operand1=end, engine=nisa.engine.vector
    )
    nisa.tensor_tensor(dst=places, data1=places, data2=beyond, op=nl.add, engine=nisa.engine.vector)
    index = cast(places, nl.int32).reshape((P_MAX, columns))
    found = nl.ndarray((columns, P_MAX), dtype=nl.int32, buffer=nl.sbuf)
    nisa.memset(dst=found, value=-1, engine=nisa.engine.gpsimd)
    nisa.dma_copy(
        dst=found,
        src=block_table.reshape((tokens * per_token, 1)).ap(
            pattern=[[1, columns * P_MAX], [1, 1]], vector_offset=index, indirect_dim=0
        ),
        oob_mode=nisa.oob_mode.skip,
        dge_mode=nisa.dge_mode.swdge,
    )
    # The gather takes its index column by column, so that row c of what it fills is column c of the keys.
    turned = nl.ndarray((P_MAX, columns), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_transpose(dst=turned, data=cast(found, nl.float32), engine=nisa.engine.tensor)
    pages = like(keys, nl.float32)
    nisa.tensor_copy(dst=pages.reshape((P_MAX, columns)), src=turned, engine=nisa.engine.vector)
    return pages, cast(offsets, nl.float32)


def consumption_order(rows: NkiTensor) -> NkiTensor:
    """One token's rows where the batched gather looks for them: key (p, tile) is number i = p T + tile.

    out[i % 128, i // 128] = rows[p, tile];  see `nkisim.addressing.column_major`
    """
    tiles = rows.shape[1]
    in_order = nl.ndarray((tiles, P_MAX), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=in_order, src=rows)
    turned = nl.ndarray((P_MAX, tiles), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_transpose(dst=turned, data=in_order, engine=nisa.engine.tensor)
    return cast(turned, nl.int32)

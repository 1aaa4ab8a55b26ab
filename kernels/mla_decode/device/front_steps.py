"""What the front-fold is made of: RMSNorm, transposes, streamed projections, and rotation of pairs."""

import nki.isa as nisa
import nki.language as nl
from kernels.mla_decode.device.config import BANK_BYTES, BANKS_IN_TURN, P_MAX, AttentionConfig
from kernels.mla_decode.device.front_buffers import BANK_COLUMNS, FrontBuffers
from kernels.mla_decode.device.front_config import FrontConfig
from kernels.mla_decode.device.placing import bank
from kernels.mla_decode.device.tiling import count_tiles
from nki.language import NkiTensor


def normalise(
    config: AttentionConfig,
    buffers: FrontBuffers,
    target: NkiTensor,
    source: NkiTensor,
    gamma: NkiTensor,
    norm_eps: float,
) -> None:
    """target[t, i] = source[t, i] / sqrt(mean over i of source[t, i]**2 + norm_eps) * gamma[i]

    In fp32, rounded once. Norm weights are read once and brought to every partition by a product with ones, exact in
    fp32. The squares, of which only the sum is used, lie where the result will.
    """
    tokens, width = source.shape
    nisa.activation(
        dst=target,
        op=nl.square,
        data=source,
        reduce_op=nl.add,
        reduce_res=buffers.square_sum,
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )
    nisa.activation(dst=buffers.inverse_rms, op=nl.rsqrt, data=buffers.square_sum, scale=1.0 / width, bias=norm_eps)
    row = gamma.reshape((1, width))
    for chunk in range(count_tiles(width, BANK_COLUMNS)):
        start = chunk * BANK_COLUMNS
        stop = min(start + BANK_COLUMNS, width)
        loaded = buffers.gamma_row[chunk % len(buffers.gamma_row)][:, 0 : stop - start]
        nisa.dma_copy(dst=loaded, src=row[:, start:stop])
        spread = bank(config, "gamma", (tokens, stop - start), nl.float32)
        nisa.nc_matmul(
            dst=spread, stationary=buffers.row_of_ones, moving=loaded, is_stationary_onezero=True, accumulate=False
        )
        nisa.scalar_tensor_tensor(
            dst=target[:, start:stop],
            data=source[:, start:stop],
            op0=nl.multiply,
            operand0=buffers.inverse_rms,
            op1=nl.multiply,
            operand1=spread,
        )


def transpose(config: AttentionConfig, source: NkiTensor, target: NkiTensor, itemsize: int) -> None:
    """target[f, k, t] = source[t, 128 k + f], as many tiles side by side as a PSUM bank holds."""
    tokens, width = source.shape
    whole = width // P_MAX
    per_bank = BANK_BYTES // (tokens * itemsize)
    for chunk in range(count_tiles(whole, per_bank)):
        first = chunk * per_bank
        count = min(per_bank, whole - first)
        spread = bank(config, f"transposed_{chunk % BANKS_IN_TURN}", (P_MAX, count, tokens), source.dtype)
        for k in range(count):
            column = (first + k) * P_MAX
            nisa.nc_transpose(dst=spread[:, k, :], data=source[:, column : column + P_MAX], engine=nisa.engine.tensor)
        nisa.tensor_copy(dst=target[:, first : first + count, :], src=spread, engine=nisa.engine.vector)
    height = width - whole * P_MAX
    if height > 0:
        spread = bank(config, "transposed_0", (height, tokens), source.dtype)
        nisa.nc_transpose(dst=spread, data=source[:, whole * P_MAX : width], engine=nisa.engine.tensor)
        nisa.tensor_copy(dst=target[0:height, whole, :], src=spread, engine=nisa.engine.vector)


def project(
    config: FrontConfig,
    buffers: FrontBuffers,
    features: NkiTensor,
    weight: NkiTensor,
    first_column: int,
    target: NkiTensor,
) -> None:
    """target[t, i] = sum over k of features[k, t] * weight[k, first_column + i], in fp32

    Weights stream in rows; each is read once. `target` is as wide as a pass at most.
    """
    depth = weight.shape[0]
    tokens, width = target.shape
    totals = []
    for number in range(count_tiles(width, BANK_COLUMNS)):
        columns = min(BANK_COLUMNS, width - number * BANK_COLUMNS)
        totals.append(bank(config.attention, f"projection_{number}", (tokens, columns), nl.float32))
    for k in range(count_tiles(depth, P_MAX)):
        height = min(P_MAX, depth - k * P_MAX)
        rows = buffers.weights[k % len(buffers.weights)][0:height, 0:width]
        row = k * P_MAX
        nisa.dma_copy(dst=rows, src=weight[row : row + height, first_column : first_column + width])
        for number in range(len(totals)):
            column = number * BANK_COLUMNS
            nisa.nc_matmul(
                dst=totals[number],
                stationary=features[0:height, k, :],
                moving=rows[:, column : column + totals[number].shape[1]],
                accumulate=k > 0,
            )
    for number in range(len(totals)):
        column = number * BANK_COLUMNS
        evict = nisa.engine.vector if number % 2 == 0 else nisa.engine.scalar
        nisa.tensor_copy(dst=target[:, column : column + totals[number].shape[1]], src=totals[number], engine=evict)


def project_in_passes(
    config: FrontConfig, buffers: FrontBuffers, features: NkiTensor, weight: NkiTensor, target: NkiTensor
) -> None:
    """`project` over all columns of `weight`, a pass of them at a time."""
    width = weight.shape[1]
    for start in range(0, width, config.pass_columns):
        stop = min(start + config.pass_columns, width)
        project(config, buffers, features, weight, start, target[:, start:stop])


def project_for_all_heads(
    config: FrontConfig, buffers: FrontBuffers, features: NkiTensor, weight: NkiTensor, target: NkiTensor
) -> None:
    """`project_in_passes` of what all heads need. Cores that share heads make half of the columns each, and swap.

    Of an odd number both make the middle one.
    """
    width = weight.shape[1]
    if config.attention.cores_share == "tokens":
        project_in_passes(config, buffers, features, weight, target)
        return
    half, core = count_tiles(width, 2), nl.program_id(0)
    own, theirs = core * (width - half), (1 - core) * (width - half)
    made = target[:, own : own + half]
    project_in_passes(config, buffers, features, weight[:, own : own + half], made)
    nisa.sendrecv(
        src=made, dst=target[:, theirs : theirs + half], send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=0
    )


def rotate_pairs(buffers: FrontBuffers, target: NkiTensor, source: NkiTensor) -> None:
    """RoPE of interleaved pairs, in fp32, rounded once.

    target[t, g, 2 i] = source[t, g, 2 i] * cos[t, i] - source[t, g, 2 i + 1] * sin[t, i]
    target[t, g, 2 i + 1] = source[t, g, 2 i] * sin[t, i] + source[t, g, 2 i + 1] * cos[t, i]
    """
    heads, rope = source.shape[1], source.shape[2]
    even, odd = source[:, :, 0:rope:2], source[:, :, 1:rope:2]
    cos, sin = buffers.cos.broadcast(1, heads), buffers.sin.broadcast(1, heads)
    a, b = buffers.product_a[:, 0:heads, :], buffers.product_b[:, 0:heads, :]
    nisa.tensor_tensor(dst=a, data1=even, data2=cos, op=nl.multiply, engine=nisa.engine.vector)
    nisa.tensor_tensor(dst=b, data1=odd, data2=sin, op=nl.multiply, engine=nisa.engine.vector)
    nisa.tensor_tensor(dst=target[:, :, 0:rope:2], data1=a, data2=b, op=nl.subtract, engine=nisa.engine.vector)
    nisa.tensor_tensor(dst=a, data1=even, data2=sin, op=nl.multiply, engine=nisa.engine.vector)
    nisa.tensor_tensor(dst=b, data1=odd, data2=cos, op=nl.multiply, engine=nisa.engine.vector)
    nisa.tensor_tensor(dst=target[:, :, 1:rope:2], data1=a, data2=b, op=nl.add, engine=nisa.engine.vector)

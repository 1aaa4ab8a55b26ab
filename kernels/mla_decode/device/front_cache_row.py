"""Packs this step's cache rows in the fp8 format of `host.cache_format`."""

from dataclasses import dataclass

import nki.isa as nisa
import nki.language as nl
from kernels.mla_decode.device.config import SCALED_CODES, AttentionConfig
from kernels.mla_decode.device.placing import place
from kernels.mla_decode.device.tiling import packed_row_bytes
from nki.language import NKIObject, NkiTensor

INVERSE_LARGEST_CODE = 1.0 / 448.0

LEAST_LARGEST = 448.0 * 2.0**-126
"""What the largest number of a group counts as at least: its scale is a normal number then, and so is the inverse.
Numbers below are as good as zero: their codes are that of the least scale."""


@dataclass
class PackedRows(NKIObject):
    """On-chip tensors, tokens on partitions. G groups of 128 latent numbers.

    Attributes:
        rows: [n_tokens, bytes of a row] uint8.
        largest, inverse: [n_tokens, G] fp32.
    """

    rows: NkiTensor
    largest: NkiTensor
    inverse: NkiTensor


def allocate_packed_rows(config: AttentionConfig) -> PackedRows:
    """Creates them at their addresses of the plan."""
    groups = (config.n_tokens, config.kv_lora_rank // SCALED_CODES)
    return PackedRows(
        rows=place(config, "packed_rows", (config.n_tokens, packed_row_bytes(config)), nl.uint8),
        largest=place(config, "group_largest", groups, nl.float32),
        inverse=place(config, "group_inverse", groups, nl.float32),
    )


def pack_rows(config: AttentionConfig, buffers: PackedRows, kv_row: NkiTensor) -> NkiTensor:
    """Quantises rows `[k_pe | kv_latent]`: rows[t] = [codes | scales | k_pe].

    scale = max |latent| of a group / 448;  code = e4m3fn(latent / scale)

    The quotients are products with fp32 reciprocals, so a scale may be an ulp off the exact one, and a code next to
    a tie may be its neighbour.
    """
    rope, rank = config.rope, config.kv_lora_rank
    groups = rank // SCALED_CODES
    latent = kv_row[:, rope : rope + rank].reshape((config.n_tokens, groups, SCALED_CODES))
    codes = buffers.rows[:, 0:rank].view(nl.float8_e4m3fn).reshape((config.n_tokens, groups, SCALED_CODES))
    scales = buffers.rows[:, rank : rank + 4 * groups].view(nl.float32)
    nisa.tensor_reduce(dst=buffers.largest, op=nl.maximum, data=latent, axis=2)
    nisa.tensor_reduce(dst=buffers.inverse, op=nl.minimum, data=latent, axis=2, negate=True)
    nisa.tensor_tensor(
        dst=buffers.largest, data1=buffers.largest, data2=buffers.inverse, op=nl.maximum, engine=nisa.engine.vector
    )
    nisa.tensor_scalar(
        dst=scales,
        data=buffers.largest,
        op0=nl.maximum,
        operand0=LEAST_LARGEST,
        op1=nl.multiply,
        operand1=INVERSE_LARGEST_CODE,
        engine=nisa.engine.vector,
    )
    nisa.reciprocal(dst=buffers.inverse, data=scales)
    nisa.tensor_tensor(
        dst=codes,
        data1=latent,
        data2=buffers.inverse.expand_dim(2).broadcast(2, SCALED_CODES),
        op=nl.multiply,
        engine=nisa.engine.vector,
    )
    k_pe = buffers.rows[:, rank + 4 * groups : packed_row_bytes(config)].view(nl.bfloat16)
    nisa.tensor_copy(dst=k_pe, src=kv_row[:, 0:rope], engine=nisa.engine.scalar)
    return buffers.rows

"""What the front-fold is told beside the attention's configuration."""

from dataclasses import dataclass

from kernels.mla_decode.device.config import AttentionConfig
from nki.language import NKIObject

PROJECTION_BANKS = 4
"""PSUM banks of a projection's pass at most: 2,048 columns."""

FRONT_BUFFERS = 2
"""Rotating buffers of streamed weights, and of a head's query."""


@dataclass(frozen=True)
class FrontConfig(NKIObject):
    """Sizes and schedule of the front-fold.

    Attributes:
        attention: what follows; sizes in common, all addresses and PSUM banks.
        q_lora: width of the query's low-rank path; nope: width of a head's query without positions.
        heads_per_pass: heads whose queries are made at once.
        pass_columns: columns of a weight buffer.
    """

    attention: AttentionConfig
    q_lora: int
    nope: int
    heads_per_pass: int
    pass_columns: int

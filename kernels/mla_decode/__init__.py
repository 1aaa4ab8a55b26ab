"""`mla_decode`: DeepSeek-V3.2's sparse MLA decode attention over a paged cache."""

from kernels.mla_decode import plan as plan
from kernels.mla_decode import reference as reference
from kernels.mla_decode.shim import mla_decode_attention as mla_decode_attention
from kernels.mla_decode.tables import build_prior_index as build_prior_index

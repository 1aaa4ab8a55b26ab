"""`mla_decode`: DeepSeek-V3.2's sparse MLA decode attention over a paged cache, with the front-fold before it."""

from kernels.mla_decode import front_reference as front_reference
from kernels.mla_decode import plan as plan
from kernels.mla_decode import reference as reference
from kernels.mla_decode.front_shim import mla_decode as mla_decode
from kernels.mla_decode.front_shim import mla_decode_qkv as mla_decode_qkv
from kernels.mla_decode.index_shim import build_prior_index_on_device as build_prior_index_on_device
from kernels.mla_decode.scale import yarn_softmax_scale as yarn_softmax_scale
from kernels.mla_decode.shim import mla_decode_attention as mla_decode_attention
from kernels.mla_decode.tables import build_prior_index as build_prior_index

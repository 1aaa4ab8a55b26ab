"""`mla_decode`: DeepSeek-V3.2's sparse MLA decode attention over a paged cache, with the front-fold before it."""

from kernels.mla_decode.host import cache_format as cache_format
from kernels.mla_decode.host import ops as ops
from kernels.mla_decode.host.front_shim import mla_decode as mla_decode
from kernels.mla_decode.host.front_shim import mla_decode_qkv as mla_decode_qkv
from kernels.mla_decode.host.index_shim import build_prior_index_on_device as build_prior_index_on_device
from kernels.mla_decode.host.scale import yarn_softmax_scale as yarn_softmax_scale
from kernels.mla_decode.host.shim import mla_decode_attention as mla_decode_attention
from kernels.mla_decode.host.tables import build_prior_index as build_prior_index
from kernels.mla_decode.oracle import front_reference as front_reference
from kernels.mla_decode.oracle import reference as reference
from kernels.mla_decode.planning import plan as plan

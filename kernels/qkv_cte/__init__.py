"""`qkv_cte`: QKV projections, of the Wan2.2 DiT and in general."""

from kernels.qkv_cte import plan as plan
from kernels.qkv_cte import reference as reference
from kernels.qkv_cte.choice import Choice as Choice
from kernels.qkv_cte.entry import qkv as qkv
from kernels.qkv_cte.interface import NormType as NormType
from kernels.qkv_cte.interface import QKNormConfig as QKNormConfig
from kernels.qkv_cte.interface import QKVOutputLayout as QKVOutputLayout
from kernels.qkv_cte.interface import QuantizationType as QuantizationType
from kernels.qkv_cte.mx_weights import mx_quantise_weight as mx_quantise_weight
from kernels.qkv_cte.qkv_arguments import QKVArguments as QKVArguments
from kernels.qkv_cte.ranks import row_mx_qkv_proj_ranks as row_mx_qkv_proj_ranks
from kernels.qkv_cte.shim import row_mx_qkv_proj as row_mx_qkv_proj

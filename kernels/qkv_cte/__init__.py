"""`qkv_cte`: QKV projections, of the Wan2.2 DiT and in general."""

from kernels.qkv_cte.host import lanes as lanes
from kernels.qkv_cte.host.entry import qkv as qkv
from kernels.qkv_cte.host.entry import qkv_ranks as qkv_ranks
from kernels.qkv_cte.host.interface import NormType as NormType
from kernels.qkv_cte.host.interface import QKNormConfig as QKNormConfig
from kernels.qkv_cte.host.interface import QKVOutputLayout as QKVOutputLayout
from kernels.qkv_cte.host.interface import QuantizationType as QuantizationType
from kernels.qkv_cte.host.mx_weights import mx_quantise_weight as mx_quantise_weight
from kernels.qkv_cte.host.qkv_arguments import QKVArguments as QKVArguments
from kernels.qkv_cte.host.row_mx_arguments import RowMxArguments as RowMxArguments
from kernels.qkv_cte.host.shim import row_mx_qkv_proj as row_mx_qkv_proj
from kernels.qkv_cte.host.shim import row_mx_qkv_proj_ranks as row_mx_qkv_proj_ranks
from kernels.qkv_cte.oracle import reference as reference
from kernels.qkv_cte.planning import plan as plan
from kernels.qkv_cte.planning.choice import Choice as Choice

"""`nki.isa`, usually imported as `nisa`."""

from nki.isa import constants as constants
from nkisim.deprecated import engine_constant as __getattr__  # noqa: F401
from nkisim.enums import dge_mode as dge_mode
from nkisim.enums import dma_engine as dma_engine
from nkisim.enums import engine as engine
from nkisim.enums import matmul_perf_mode as matmul_perf_mode
from nkisim.enums import nc_version as nc_version
from nkisim.enums import oob_mode as oob_mode
from nkisim.enums import reduce_cmd as reduce_cmd
from nkisim.errors import NkiValidationError as NkiValidationError
from nkisim.instruction import NkiInstruction as NkiInstruction
from nkisim.isa.copying import memset as memset
from nkisim.isa.copying import tensor_copy as tensor_copy
from nkisim.isa.elementwise import reciprocal as reciprocal
from nkisim.isa.elementwise import scalar_tensor_tensor as scalar_tensor_tensor
from nkisim.isa.elementwise import tensor_scalar as tensor_scalar
from nkisim.isa.elementwise import tensor_tensor as tensor_tensor
from nkisim.isa.matmul import nc_matmul as nc_matmul
from nkisim.isa.matmul_mx import nc_matmul_mx as nc_matmul_mx
from nkisim.isa.patterns import affine_select as affine_select
from nkisim.isa.patterns import iota as iota
from nkisim.isa.reduction import tensor_partition_reduce as tensor_partition_reduce
from nkisim.isa.reduction import tensor_reduce as tensor_reduce
from nkisim.isa.registers import get_nc_sub_version as get_nc_sub_version
from nkisim.isa.registers import get_nc_version as get_nc_version
from nkisim.isa.registers import register_alloc as register_alloc
from nkisim.isa.registers import register_load as register_load
from nkisim.isa.registers import register_move as register_move
from nkisim.isa.registers import register_store as register_store
from nkisim.isa.scalar_engine import activate2 as activate2
from nkisim.isa.scalar_engine import activation as activation
from nkisim.isa.scalar_engine import activation_reduce as activation_reduce
from nkisim.isa.transfer import dma_copy as dma_copy
from nkisim.isa.transpose import nc_transpose as nc_transpose
from nkisim.registers import VirtualRegister as VirtualRegister

"""`nki.isa`, usually imported as `nisa`."""

from nkisim.enums import dge_mode as dge_mode
from nkisim.enums import dma_engine as dma_engine
from nkisim.enums import engine as engine
from nkisim.enums import matmul_perf_mode as matmul_perf_mode
from nkisim.enums import nc_version as nc_version
from nkisim.enums import oob_mode as oob_mode
from nkisim.enums import reduce_cmd as reduce_cmd
from nkisim.errors import NkiValidationError as NkiValidationError
from nkisim.isa.copying import memset as memset
from nkisim.isa.copying import tensor_copy as tensor_copy
from nkisim.isa.elementwise import scalar_tensor_tensor as scalar_tensor_tensor
from nkisim.isa.elementwise import tensor_scalar as tensor_scalar
from nkisim.isa.elementwise import tensor_tensor as tensor_tensor
from nkisim.isa.scalar_engine import activation as activation
from nkisim.isa.tensor_engine import nc_matmul_mx as nc_matmul_mx
from nkisim.isa.tensor_engine import nc_transpose as nc_transpose
from nkisim.isa.transfer import dma_copy as dma_copy

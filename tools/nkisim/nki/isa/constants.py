"""`nki.isa.constants`: enumerations of `nki.isa` under the module name that public kernels import them from."""

from nkisim.enums import dge_mode as dge_mode
from nkisim.enums import dma_engine as dma_engine
from nkisim.enums import engine as engine
from nkisim.enums import matmul_perf_mode as matmul_perf_mode
from nkisim.enums import nc_version as nc_version
from nkisim.enums import oob_mode as oob_mode
from nkisim.enums import reduce_cmd as reduce_cmd

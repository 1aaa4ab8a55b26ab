"""`nki.language`, usually imported as `nl`."""

from nkisim.dtypes import bfloat16 as bfloat16
from nkisim.dtypes import bool_ as bool_
from nkisim.dtypes import float4_e2m1fn_x4 as float4_e2m1fn_x4
from nkisim.dtypes import float8_e4m3 as float8_e4m3
from nkisim.dtypes import float8_e4m3fn as float8_e4m3fn
from nkisim.dtypes import float8_e4m3fn_x4 as float8_e4m3fn_x4
from nkisim.dtypes import float8_e5m2 as float8_e5m2
from nkisim.dtypes import float8_e5m2_x4 as float8_e5m2_x4
from nkisim.dtypes import float8_e8m0fnu as float8_e8m0fnu
from nkisim.dtypes import float16 as float16
from nkisim.dtypes import float32 as float32
from nkisim.dtypes import int8 as int8
from nkisim.dtypes import int16 as int16
from nkisim.dtypes import int32 as int32
from nkisim.dtypes import tfloat32 as tfloat32
from nkisim.dtypes import uint8 as uint8
from nkisim.dtypes import uint16 as uint16
from nkisim.dtypes import uint32 as uint32
from nkisim.enums import MemoryRegion as MemoryRegion
from nkisim.language.creation import ds as ds
from nkisim.language.creation import ndarray as ndarray
from nkisim.language.creation import num_programs as num_programs
from nkisim.language.creation import program_id as program_id
from nkisim.language.creation import program_ndim as program_ndim
from nkisim.language.operators import add as add
from nkisim.language.operators import copy as copy
from nkisim.language.operators import maximum as maximum
from nkisim.language.operators import multiply as multiply
from nkisim.language.operators import subtract as subtract
from nkisim.language.tiles import tile_size as tile_size
from nkisim.objects import NKIObject as NKIObject
from nkisim.tensor import NkiTensor as NkiTensor

sbuf = MemoryRegion.sbuf
psum = MemoryRegion.psum
hbm = MemoryRegion.private_hbm
private_hbm = MemoryRegion.private_hbm
shared_hbm = MemoryRegion.shared_hbm
bool = bool_

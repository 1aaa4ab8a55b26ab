"""`nki.dtype`: the data types under the module name that public kernels use, also as an annotation."""

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

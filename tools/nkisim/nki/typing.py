"""`nki.typing`: annotations of older kernels, such as `tensor[128, 512]`. They mean nothing to the simulator."""

from nkisim.annotations import mutable_tensor as mutable_tensor
from nkisim.annotations import tensor as tensor

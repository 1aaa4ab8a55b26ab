"""`adaln_quant`: LayerNorm with adaptive scale and shift, and row quantisation, of the Wan2.2 DiT."""

from kernels.adaln_quant.host.shim import adaln_modulate as adaln_modulate
from kernels.adaln_quant.host.shim import row_quantize_packed as row_quantize_packed
from kernels.adaln_quant.oracle import reference as reference
from kernels.adaln_quant.planning import plan as plan

"""The Neuron Kernel Interface, simulated on the CPU.

Offers the names of AWS's `nki` package and nothing else, so that the same kernel sources run here and on the device.
What is behind them lives in `nkisim`.
"""

import nkisim as _nkisim  # noqa: F401 - finds the workspace before anything else is imported
from nki import collectives as collectives
from nki import dtype as dtype
from nki import isa as isa
from nki import language as language
from nki import typing as typing
from nkisim.launch import jit as jit
from nkisim.launch import simulate as simulate

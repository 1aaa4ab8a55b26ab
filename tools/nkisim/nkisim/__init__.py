"""The machine behind the simulated `nki` package.

Kernels import `nki` and never this package. Benches, tests and tools use it to choose options and to read what a
run recorded:

    from nkisim import Options, run
    finished = run(kernel[2], x, w, options=Options(target="trn3", numerics=False))
    finished.cores[0].stream    # one record per instruction
    finished.cores[0].memory    # peaks of SBUF and PSUM
"""

from nkisim import _workspace as _workspace
from nkisim.launch import CoreReport, Run, run
from nkisim.options import Options

__all__ = ["CoreReport", "Options", "Run", "run"]

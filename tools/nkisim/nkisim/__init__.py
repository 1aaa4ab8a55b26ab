"""The machine behind the simulated `nki` package.

Kernels import `nki` and never this package. Benches, tests and tools use it to choose options and to read what a
run recorded:

    from nkisim import Options, run
    finished = run(kernel[2], x, w, options=Options(target="trn3", numerics=False))
    finished.cores[0].stream    # one record per instruction
    finished.cores[0].memory    # peaks of SBUF and PSUM

    run_ranks(kernel[2], [(x0, w), (x1, w)])    # two ranks in this process
    run_in_group(kernel[2], x, w)               # this process's rank, under torchrun
"""

from nkisim import _workspace as _workspace
from nkisim.execution import CoreReport, Run
from nkisim.launch import run, run_in_group, run_ranks
from nkisim.options import Options

__all__ = ["CoreReport", "Options", "Run", "run", "run_in_group", "run_ranks"]

"""Finds the workspace root for a bare checkout.

The simulator takes its hardware facts from `common/` at the workspace root. Bazel and the virtual environment
put that folder on the path; where only `tools/nkisim` was put there, it is two folders up.
"""

import importlib.util
import sys
from pathlib import Path

if importlib.util.find_spec("common") is None:
    sys.path.append(str(Path(__file__).resolve().parents[3]))

"""Imported by a .pth file at start-up: finds the pip packages behind their stamps.

A target that depends on a pip package has only the package's stamp among its inputs, not its
thousands of files. The stamp's folder is on PYTHONPATH; here each such entry is replaced with the
folder where the stamp's real file lies, which is where the package is installed.
"""

import json
import os
import sys

STAMP = ".pip_stamp.json"


def resolve(path: list[str]) -> list[str]:
    """Returns `path` with installed folders for stamped ones, those that come ahead of others first."""
    ahead: list[str] = []
    others: list[str] = []
    for entry in path:
        stamp = os.path.join(entry, STAMP)
        if not os.path.exists(stamp):
            others.append(entry)
            continue
        with open(stamp, encoding="utf-8") as file:
            group = ahead if json.load(file).get("ahead_of_others") else others
        group.append(os.path.dirname(os.path.realpath(stamp)))
    return ahead + others


sys.path[:] = resolve(sys.path)

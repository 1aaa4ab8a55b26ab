"""Fills a repository of one locked pip package: site/, its stamp and BUILD.bazel.

Run by `whl_library` in the new repository's folder with an interpreter that has pip:

    install_package.py HUB REQUIREMENT LOCKED_NAME...

REQUIREMENT is one line of the lock with its hashes, LOCKED_NAME the normalized names of all lines.
"""

import compileall
import hashlib
import json
import py_compile
import re
import sys
import sysconfig
from importlib.metadata import Distribution, distributions
from pathlib import Path

from locked_packages import PipError, install, needed_by, parse

STAMP = ".pip_stamp.json"  # stamped_path.py looks for it

BUILD = """\
load("@rules_python//python:defs.bzl", "py_library")

py_library(
    name = "pkg",
    data = ["site/{stamp}"],
    imports = ["site"],
    visibility = ["//visibility:public"],
    deps = {deps},
)
"""


def compile_all(site: Path) -> None:
    """Compiles to hash-based bytecode, which is valid wherever and whenever it was compiled."""
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    tests = re.compile(r"/tests?/")  # a good part of some packages, and nothing imports it
    compileall.compile_dir(site, quiet=2, stripdir=str(site), invalidation_mode=unchecked, rx=tests)


def stamp(distribution: Distribution, requirement: str) -> dict[str, str]:
    """Returns what identifies the installed files: a change in any of them changes it."""
    # Not the commands that pip generates outside the package, which name this machine's folders.
    files = [file for file in distribution.files or [] if ".." not in file.parts]
    files = [file for file in files if not file.parts[0].endswith(".dist-info")]
    record = sorted(f"{file} {file.hash and file.hash.value}" for file in files)
    return {
        "abi": str(sysconfig.get_config_var("SOABI")),
        "files_sha256": hashlib.sha256("\n".join(record).encode()).hexdigest(),
        "name": distribution.metadata["Name"],
        "requirement": requirement,
        "version": distribution.version,
    }


def main() -> None:
    """Installs the package that the command line names."""
    hub, requirement, *locked_names = sys.argv[1:]
    site = Path("site")
    try:
        install([requirement], "--no-compile", "--target", str(site))
    except PipError as error:
        sys.exit(f"pip could not install {parse(requirement)}:\n{error}")
    compile_all(site)
    (distribution,) = distributions(path=[str(site)])
    (site / STAMP).write_text(json.dumps(stamp(distribution, requirement), indent=1) + "\n")
    needed = {name.replace("-", "_") for name in needed_by(distribution, parse(requirement).extras)}
    deps = [f"@{hub}_{name}//:pkg" for name in sorted(needed & set(locked_names))]
    Path("BUILD.bazel").write_text(BUILD.format(stamp=STAMP, deps=json.dumps(deps)))


if __name__ == "__main__":
    main()

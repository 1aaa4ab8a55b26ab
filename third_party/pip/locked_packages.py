"""The lock: which packages it holds, which of them an installed one needs, how they are installed.

The lock is a superset: torch's CUDA build asks for packages that its CPU build does not. What gets
installed therefore follows the metadata of the wheels that were chosen, not the whole lock.

Only for an interpreter that has pip, whose parser of requirements is used.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterable
from importlib.metadata import Distribution
from pathlib import Path

from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import canonicalize_name


class PipError(Exception):
    """pip failed; the message is what it printed."""


def read_lock(text: str) -> dict[str, str]:
    """Returns {canonical name: requirement with all its hashes} of a requirements file's text."""
    lines = [" ".join(line.split()) for line in text.replace("\\\n", " ").splitlines()]
    requirements = [line for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(parse(line).name): line for line in requirements}


def parse(requirement: str) -> Requirement:
    """Returns the parsed form of a lock's requirement, without its hashes."""
    return Requirement(requirement.split(" --hash")[0])


def needed_by(distribution: Distribution, extras: set[str]) -> set[str]:
    """Returns the canonical names that an installed distribution, with `extras`, needs on this machine."""
    needed = (Requirement(text) for text in distribution.requires or [])
    return {
        canonicalize_name(requirement.name)
        for requirement in needed
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras | {""})
    }


def install(locked: Iterable[str], *options: str) -> None:
    """Installs locked requirements and nothing else; `options` are further ones of `pip install`.

    Two steps, since pip, when it is given hashes, passes over files whose index states none, such as
    torch's CPU build on a disk: it first takes the files that it would take without hashes, then
    installs them only if their hashes are locked.

    Raises:
        PipError: a file cannot be had, or its hash is not locked.
    """
    hashes = {canonicalize_name(parse(line).name): line.split(" --hash")[1:] for line in locked}
    pinned = [f"{parse(line).name}{parse(line).specifier}" for line in locked]
    with tempfile.TemporaryDirectory() as folder:
        _pip("download", "--no-deps", "--only-binary", ":all:", "--dest", folder, *pinned)
        lines = [
            " --hash".join([str(wheel), *hashes[canonicalize_name(wheel.name.split("-")[0])]])
            for wheel in Path(folder).iterdir()
        ]
        requirements = Path(folder, "requirements.txt")
        requirements.write_text("\n".join(lines) + "\n")
        _pip("install", "--no-deps", "--require-hashes", "-r", str(requirements), *options)


def _pip(command: str, *arguments: str) -> None:
    call = [sys.executable, "-m", "pip", command, "--quiet", *arguments]
    done = subprocess.run(call, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise PipError(done.stdout.strip())

"""Rewrites requirements_lock.txt from requirements.in.

    bazel run //third_party:update_lock

Every package is pinned with the hashes of all its files in the package index, for any machine. Where
pip on this machine prefers a local build of a pinned version (torch's CPU wheel on a disk), that file's
hash is added; hashes that are already locked for the same version stay, so that a local build known
elsewhere is not lost.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from locked_packages import parse, read_lock
from uv import find_uv_bin

HEADER = """\
# Written by: bazel run //third_party:update_lock
# Every package that requirements.in may need on Linux with Python 3.11, and the hashes of its files.
# What is installed is less: locked_packages.py follows what the chosen wheels ask for.
"""

# Decides versions only: the hashes are those of every platform's files.
PLATFORM = "x86_64-unknown-linux-gnu"

HASH = re.compile(r"--hash=(sha256:[0-9a-f]{64})")


def resolve(requirements: Path) -> dict[str, str]:
    """Returns the lock's requirements with the package index's hashes."""
    command = [find_uv_bin(), "pip", "compile", "--quiet", "--no-header", "--no-annotate"]
    command += ["--generate-hashes", "--no-strip-extras", "--python-version=3.11"]
    command += [f"--python-platform={PLATFORM}", str(requirements)]
    return read_lock(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def hash_that_pip_takes(requirement: str) -> str:
    """Returns the hash of the file that pip on this machine would install for a pinned requirement."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
    command += ["--no-deps", "--only-binary=:all:", "--report=-", str(parse(requirement))]
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    (package,) = report["install"]
    return "sha256:" + package["download_info"]["archive_info"]["hashes"]["sha256"]


def merge(resolved: str, previous: str | None, local_hash: str | None) -> str:
    """Returns the lock's lines of a package: its hashes, the previous ones of the version, a local one."""
    hashes = set(HASH.findall(resolved))
    if previous is not None and parse(previous).specifier == parse(resolved).specifier:
        hashes.update(HASH.findall(previous))
    if local_hash is not None:
        hashes.add(local_hash)
    lines = [str(parse(resolved)), *(f"    --hash={value}" for value in sorted(hashes))]
    return " \\\n".join(lines) + "\n"


def main() -> None:
    """Rewrites the lock in the workspace that `bazel run` was called in."""
    folder = Path(os.environ["BUILD_WORKSPACE_DIRECTORY"], "third_party")
    lock = folder / "requirements_lock.txt"
    previous = read_lock(lock.read_text()) if lock.exists() else {}
    resolved = resolve(folder / "requirements.in")
    local = {"torch": hash_that_pip_takes(resolved["torch"])}
    text = [merge(line, previous.get(name), local.get(name)) for name, line in sorted(resolved.items())]
    lock.write_text(HEADER + "".join(text))
    print(f"{lock}: {len(resolved)} packages")


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"the lock was not changed: {error.cmd[0]} exited with {error.returncode}")

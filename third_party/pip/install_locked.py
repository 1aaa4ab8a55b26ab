"""Installs the locked packages into the environment of the interpreter that runs this.

What requirements.in names, then what the installed wheels ask for, until nothing is missing. Files
whose hash is not in the lock are refused by pip.
"""

import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from locked_packages import PipError, install, needed_by, parse, read_lock

THIRD_PARTY = Path(__file__).resolve().parent.parent


def missing(locked: dict[str, str], roots: set[str]) -> set[str]:
    """Returns the names of locked packages that `roots` are known to need and that are not installed."""
    absent: set[str] = set()
    seen: set[str] = set()
    todo = list(roots)
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        requirement = parse(locked[name])
        try:
            installed = distribution(name)
        except PackageNotFoundError:
            absent.add(name)
            continue
        if not requirement.specifier.contains(installed.version):
            absent.add(name)
            continue
        todo += needed_by(installed, requirement.extras) & locked.keys()
    return absent


def main() -> None:
    """Installs until nothing is missing."""
    locked = read_lock((THIRD_PARTY / "requirements_lock.txt").read_text())
    roots = set(read_lock((THIRD_PARTY / "requirements.in").read_text()))
    while absent := missing(locked, roots):
        print(f"installing {', '.join(sorted(absent))}")
        install([locked[name] for name in absent])


if __name__ == "__main__":
    try:
        main()
    except PipError as error:
        sys.exit(f"pip could not install:\n{error}")

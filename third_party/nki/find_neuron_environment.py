"""Links the packages of this machine's Neuron Python environment into a folder.

    find_neuron_environment.py FOLDER

The environment is the one that the variable NEURON_ENVIRONMENT names, else the newest of
/opt/aws_neuronx_venv* that will do. It will do when its Python has this interpreter's major and minor
version (compiled extensions load in no other) and it holds nki, neuronxcc and torch_neuronx. FOLDER
then links to all its packages, since those three import others, and holds a stamp that names their
versions. Where there is no such environment, one line says why and the exit status is 1.
"""

import json
import os
import sys
from importlib.metadata import distributions
from pathlib import Path

PACKAGES = ("nki", "neuronxcc", "torch_neuronx")
STAMP = ".pip_stamp.json"  # stamped_path.py looks for it
VARIABLE = "NEURON_ENVIRONMENT"
DEFAULT_PATTERN = "aws_neuronx_venv*"


class UnusableError(Exception):
    """A folder is not a Neuron environment for this interpreter; the message says why."""


def site_packages(environment: Path) -> Path:
    """Returns the folder of an environment's packages; raises UnusableError where one is missing."""
    wanted = f"python{sys.version_info.major}.{sys.version_info.minor}"
    found = sorted(path.name for path in environment.glob("lib/python3.*"))
    if not found:
        raise UnusableError(f"{environment} is not a Python virtual environment")
    if wanted not in found:
        raise UnusableError(f"{environment} is for {', '.join(found)}, needed is {wanted}")
    site = environment / "lib" / wanted / "site-packages"
    missing = [name for name in PACKAGES if not (site / name).is_dir()]
    if missing:
        raise UnusableError(f"{environment} has no package {', '.join(missing)}")
    return site


def find(variable: str | None, default_root: Path) -> Path:
    """Returns site-packages of the environment to use; raises UnusableError where there is none."""
    if variable:
        return site_packages(Path(variable))
    reasons = []
    for environment in sorted(default_root.glob(DEFAULT_PATTERN), reverse=True):
        try:
            return site_packages(environment)
        except UnusableError as unusable:
            reasons.append(str(unusable))
    raise UnusableError("; ".join(reasons) or f"{default_root}/{DEFAULT_PATTERN} does not exist")


def link(site: Path, folder: Path) -> None:
    """Fills `folder` with links to a site-packages folder's entries and a stamp of their versions."""
    folder.mkdir(parents=True)
    for entry in site.iterdir():
        if entry.suffix != ".pth":
            (folder / entry.name).symlink_to(entry)
    versions = {found.metadata["Name"]: found.version for found in distributions(path=[str(site)])}
    # Ahead of the locked packages: the vendor's are built for the torch and numpy beside them.
    stamp = {"ahead_of_others": True, "site_packages": str(site), "versions": versions}
    (folder / STAMP).write_text(json.dumps(stamp, indent=1, sort_keys=True) + "\n")


def main() -> None:
    """Links the environment into the folder that the command line names."""
    try:
        link(find(os.environ.get(VARIABLE), Path("/opt")), Path(sys.argv[1]))
    except UnusableError as unusable:
        sys.exit(
            f"--//third_party/nki:backend=device needs AWS's Neuron Python environment with "
            f"{', '.join(PACKAGES)}: {unusable} (set {VARIABLE} to the folder of one)"
        )


if __name__ == "__main__":
    main()

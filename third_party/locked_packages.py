"""Which packages of the lock an installed package needs.

The lock is a superset: torch's CUDA build asks for packages that its CPU build does not. What gets
installed therefore follows the metadata of the wheels that were chosen, not the whole lock.

Only for an interpreter that has pip, whose parser of requirements is used.
"""

from importlib.metadata import Distribution

from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import canonicalize_name


def read_lock(text: str) -> dict[str, str]:
    """Returns {canonical name: requirement with all its hashes} of a lock file's text."""
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
        if requirement.marker is None
        or any(requirement.marker.evaluate({"extra": extra}) for extra in extras | {""})
    }

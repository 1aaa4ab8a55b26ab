"""The lock as a whole, and what is installed of it."""

from importlib.metadata import Distribution
from pathlib import Path

import install_package
import locked_packages
import pytest
import update_lock

LOCK = locked_packages.read_lock(Path("third_party/requirements_lock.txt").read_text())
HASH_A, HASH_B, HASH_C = (f"sha256:{digit * 64}" for digit in "abc")


class Installed(Distribution):
    """An installed distribution as far as its requirements go."""

    def __init__(self, *requires):
        lines = [f"Requires-Dist: {requirement}" for requirement in requires]
        self.metadata_text = "\n".join(["Metadata-Version: 2.1", "Name: x", *lines])

    def read_text(self, filename):
        return self.metadata_text if filename == "METADATA" else None

    def locate_file(self, path):
        raise NotImplementedError


def test_every_line_is_pinned_by_version_and_hash():
    assert len(LOCK) > 20
    for line in LOCK.values():
        (specifier,) = locked_packages.parse(line).specifier
        assert specifier.operator == "==", line
        assert update_lock.HASH.search(line), line


def test_what_is_asked_for_is_locked():
    asked = locked_packages.read_lock(Path("third_party/requirements.in").read_text())
    assert {"torch", "numpy"} <= asked.keys() <= LOCK.keys()


def test_torch_has_hashes_for_other_machines_too():
    assert len(update_lock.HASH.findall(LOCK["torch"])) > 10
    assert "nvidia-cublas" in LOCK


def test_read_lock_joins_lines_and_skips_comments():
    text = f"# comment\nA.b_C[x, y]==1.0 \\\n    --hash={HASH_A} \\\n    --hash={HASH_B}\n"
    text += f"    # via x\nd==2 --hash={HASH_C}\n"
    assert locked_packages.read_lock(text) == {
        "a-b-c": f"A.b_C[x, y]==1.0 --hash={HASH_A} --hash={HASH_B}",
        "d": f"d==2 --hash={HASH_C}",
    }


def test_needed_by_follows_markers_of_this_machine():
    installed = Installed("A_a>=1", "b; sys_platform == 'win32'", "c; python_version >= '3.0'")
    assert locked_packages.needed_by(installed, set()) == {"a-a", "c"}
    assert locked_packages.needed_by(Installed(), set()) == set()


def test_needed_by_follows_the_extras_that_are_locked():
    installed = Installed("a", "b; extra == 'one'", "c; extra == 'two'")
    assert locked_packages.needed_by(installed, {"one"}) == {"a", "b"}
    assert locked_packages.needed_by(installed, {"one", "two"}) == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("previous", "local_hash", "hashes"),
    [
        (None, None, [HASH_B]),
        (None, HASH_A, [HASH_A, HASH_B]),
        (f"x==1.0 --hash={HASH_C}", None, [HASH_B, HASH_C]),
        (f"x==0.9 --hash={HASH_C}", None, [HASH_B]),
    ],
)
def test_merge_keeps_hashes_of_the_same_version_only(previous, local_hash, hashes):
    merged = update_lock.merge(f"x==1.0 --hash={HASH_B}", previous, local_hash)
    assert update_lock.HASH.findall(merged) == hashes
    assert locked_packages.read_lock(merged).keys() == {"x"}


def test_stamp_changes_with_the_installed_files(tmp_path):
    def stamp(digest, requirement="x==1.0", command="here"):
        info = tmp_path / "x-1.0.dist-info"
        info.mkdir(exist_ok=True)
        info.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: x\nVersion: 1.0\n")
        info.joinpath("RECORD").write_text(
            f"x.py,sha256={digest},1\n../../bin/x,sha256={command},1\nx-1.0.dist-info/RECORD,,\n"
        )
        (found,) = install_package.distributions(path=[str(tmp_path)])
        return install_package.stamp(found, requirement)

    assert stamp("one") == stamp("one")
    assert stamp("one") == stamp("one", command="there")
    assert stamp("one") != stamp("two")
    assert stamp("one") != stamp("one", "x==1.0 --hash=other")
    assert stamp("one")["version"] == "1.0"

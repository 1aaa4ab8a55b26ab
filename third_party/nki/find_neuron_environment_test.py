"""The switch to the vendor's packages, with made-up environments."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import stamped_path

from third_party.nki import find_neuron_environment as finder

SCRIPT = Path("third_party/nki/find_neuron_environment.py").resolve()
THIS_PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"


def make_environment(folder, packages=finder.PACKAGES, python=THIS_PYTHON):
    site = folder / "lib" / python / "site-packages"
    site.mkdir(parents=True)
    for name in packages:
        (site / name).mkdir()
        (site / name / "__init__.py").write_text(f"ORIGIN = {str(folder)!r}\n")
        info = site / f"{name}-2.5.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.5\n")
    (site / "companion.py").write_text("from nki import ORIGIN\n")
    (site / "hook.pth").write_text("import companion\n")
    return folder


def run_script(environment, output):
    variables = {**os.environ, finder.VARIABLE: str(environment)}
    return subprocess.run([sys.executable, SCRIPT, output], env=variables, capture_output=True, text=True)


def test_links_the_environment_that_the_variable_names(tmp_path):
    environment = make_environment(tmp_path / "neuron")
    done = run_script(environment, tmp_path / "site")
    assert (done.returncode, done.stderr) == (0, "")
    stamp = json.loads((tmp_path / "site" / ".pip_stamp.json").read_text())
    assert stamp["versions"] == dict.fromkeys(finder.PACKAGES, "2.5")
    assert not (tmp_path / "site" / "hook.pth").exists()


def test_linked_packages_import_and_come_first(tmp_path):
    environment = make_environment(tmp_path / "neuron")
    assert run_script(environment, tmp_path / "site").returncode == 0
    other = tmp_path / "locked"
    (other / "nki").mkdir(parents=True)
    (other / ".pip_stamp.json").write_text("{}")
    (other / "nki" / "__init__.py").write_text("ORIGIN = 'locked'\n")
    # As in runfiles: folders that hold nothing but a link to the stamp.
    entries = []
    for name in ("locked", "site"):
        (tmp_path / "runfiles" / name).mkdir(parents=True)
        entries.append(str(tmp_path / "runfiles" / name))
        (tmp_path / "runfiles" / name / ".pip_stamp.json").symlink_to(tmp_path / name / ".pip_stamp.json")
    path = stamped_path.resolve([str(tmp_path), *entries])
    assert path == [str(tmp_path / "site"), str(tmp_path), str(other)]
    program = "import companion, neuronxcc, torch_neuronx; print(companion.ORIGIN)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        env={"PYTHONPATH": ":".join(path)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == str(environment), done.stderr


def test_newest_usable_default_environment_is_taken(tmp_path):
    make_environment(tmp_path / "aws_neuronx_venv_a")
    make_environment(tmp_path / "aws_neuronx_venv_b")
    make_environment(tmp_path / "aws_neuronx_venv_c", packages=["nki"])
    make_environment(tmp_path / "another_venv_d")
    assert finder.find(None, tmp_path).is_relative_to(tmp_path / "aws_neuronx_venv_b")


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (None, "is not a Python virtual environment"),
        ({"python": "python3.10"}, f"is for python3.10, needed is {THIS_PYTHON}"),
        ({"packages": ["nki"]}, "has no package neuronxcc, torch_neuronx"),
    ],
)
def test_an_unusable_environment_is_refused_in_one_line(tmp_path, made, reason):
    if made is not None:
        make_environment(tmp_path / "neuron", **made)
    done = run_script(tmp_path / "neuron", tmp_path / "site")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert f"{tmp_path / 'neuron'} {reason}" in done.stderr
    assert "--//third_party/nki:backend=device" in done.stderr
    assert finder.VARIABLE in done.stderr
    assert not (tmp_path / "site").exists()


def test_no_environment_at_all(tmp_path):
    with pytest.raises(finder.UnusableError, match=r"aws_neuronx_venv\* does not exist"):
        finder.find(None, tmp_path)


def test_default_environments_are_each_refused_by_name(tmp_path):
    make_environment(tmp_path / "aws_neuronx_venv_a", packages=["nki"])
    make_environment(tmp_path / "aws_neuronx_venv_b", python="python3.10")
    with pytest.raises(finder.UnusableError, match=r"venv_b is for python3\.10.*venv_a has no package"):
        finder.find("", tmp_path)

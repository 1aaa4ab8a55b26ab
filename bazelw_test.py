"""bazelw on machines that lack this or that, made of a PATH with stand-ins only."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

WRAPPER = Path("bazelw").resolve()
DEBIAN_BAZEL = 'if [ "$1" = --version ]; then echo bazel no_version; else echo "ran in $PWD: $*"; fi'


class Machine:
    """A PATH folder with the programs that the machine has."""

    def __init__(self, folder):
        self.programs = folder / "programs"
        self.programs.mkdir()
        self.workspace = folder / "a workspace"
        self.workspace.mkdir()
        shutil.copy(WRAPPER, self.workspace / "bazelw")
        for name in ("dirname", "env", "readlink"):
            (self.programs / name).symlink_to(shutil.which(name))
        self.log = folder / "log"
        self.log.touch()
        self.put("python3.11", f'exec {sys.executable} "$@"')
        for name in ("npm", "chromium", "chromedriver"):
            self.put(name, "")
        self.put("id", "echo 0")

    def put(self, name, script):
        path = self.programs / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def remove(self, name):
        (self.programs / name).unlink()

    def put_apt_get(self, installs=DEBIAN_BAZEL, status=0):
        bazel = self.programs / "bazel"
        lines = [f'echo "$*" >>"{self.log}"', "echo apt-get talks", f"[ $1 = update ] || exit {status}"]
        if installs:
            self.put("new_bazel", installs)
            (self.programs / "ln").symlink_to(shutil.which("ln"))
            lines = [
                *lines[:2],
                f"[ $1 = update ] || ln -sf '{self.programs / 'new_bazel'}' '{bazel}'",
                lines[2],
            ]
        self.put("apt-get", "\n".join(lines))

    def run(self, *arguments, cwd=None):
        command = ["/bin/sh", self.workspace / "bazelw", *arguments]
        environment = {"PATH": str(self.programs)}
        return subprocess.run(command, env=environment, cwd=cwd or self.workspace, capture_output=True, text=True)

    @property
    def installed(self):
        calls = [line.split() for line in self.log.read_text().splitlines()]
        assert calls[0][0] == "update"
        assert calls[1][0] == "install"
        return [word for word in calls[1][1:] if not word.startswith("-")]


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def assert_refused(done, *words):
    """One line, on stderr, after whatever apt-get had to say."""
    assert done.returncode != 0
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if not line.startswith(("apt-get talks", "bazelw: installing"))]
    assert len(lines) == 1, lines
    assert lines[0].startswith("bazelw: ")
    for word in words:
        assert word in lines[0]


@pytest.mark.parametrize("version", ["bazel no_version", "bazel 4.2.3"])
def test_a_usable_bazel_gets_the_arguments(machine, version):
    machine.put("bazel", DEBIAN_BAZEL.replace("bazel no_version", version))
    done = machine.run("test", "//...", "--test_filter=a or b")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"ran in {machine.workspace}: test //... --test_filter=a or b\n"


def test_exit_status_is_that_of_bazel(machine):
    machine.put("bazel", DEBIAN_BAZEL.replace('echo "ran', 'exit 37; echo "ran'))
    assert machine.run("test").returncode == 37


def test_current_folder_counts_inside_the_workspace_only(machine, tmp_path):
    machine.put("bazel", DEBIAN_BAZEL)
    inside = machine.workspace / "kernels"
    inside.mkdir()
    assert machine.run(cwd=inside).stdout.startswith(f"ran in {inside}:")
    beside = tmp_path / "a workspace 2"
    beside.mkdir()
    assert machine.run(cwd=beside).stdout.startswith(f"ran in {machine.workspace}:")


@pytest.mark.parametrize("target", ["{workspace}/bazelw", "../a workspace/bazelw"])
def test_a_link_to_it_finds_the_workspace(machine, tmp_path, target):
    machine.put("bazel", DEBIAN_BAZEL)
    link = tmp_path / "some programs" / "b"
    link.parent.mkdir()
    link.symlink_to(target.format(workspace=machine.workspace))
    inside = machine.workspace / "kernels"
    inside.mkdir()
    for folder, expected in [(tmp_path, machine.workspace), (link.parent, machine.workspace), (inside, inside)]:
        command = ["/bin/sh", link, "info"]
        done = subprocess.run(command, env={"PATH": str(machine.programs)}, cwd=folder, capture_output=True, text=True)
        assert (done.stdout, done.stderr) == (f"ran in {expected}: info\n", "")


def test_installs_bazel_on_a_bare_machine(machine):
    machine.put_apt_get()
    done = machine.run("test", "//...")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"ran in {machine.workspace}: test //...\n"
    assert machine.installed == ["bazel-bootstrap"]


def test_installs_bazel_beside_one_that_is_too_new(machine, tmp_path):
    machine.put_apt_get()
    newer = tmp_path / "newer"
    newer.mkdir()
    machine.put("bazel", "echo bazel 8.1.0")
    (machine.programs / "bazel").rename(newer / "bazel")
    environment = {"PATH": f"{newer}:{machine.programs}"}
    command = ["/bin/sh", machine.workspace / "bazelw", "info"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout == f"ran in {machine.workspace}: info\n"
    assert machine.installed == ["bazel-bootstrap"]


def test_installs_whatever_else_is_missing(machine):
    machine.put("bazel", DEBIAN_BAZEL)
    machine.put_apt_get(installs=None)
    for name in ("npm", "chromedriver"):
        machine.remove(name)
    machine.put("python3.11", f'case "$*" in *ensurepip*) exit 1 ;; esac; exec {sys.executable} "$@"')
    assert machine.run("info").returncode == 0
    assert machine.installed == ["python3.11-venv", "npm", "chromium", "chromium-driver"]


def test_uses_sudo_where_not_root(machine):
    machine.put("id", "echo 1000")
    machine.put("sudo", f'echo "sudo $*" >>"{machine.log}.sudo"; shift; exec "$@"')
    machine.put_apt_get()
    assert machine.run("info").returncode == 0
    assert machine.installed == ["bazel-bootstrap"]
    assert Path(f"{machine.log}.sudo").read_text().count("apt-get") == 2


def test_refuses_without_root_and_sudo(machine):
    machine.put("id", "echo 1000")
    machine.put_apt_get()
    assert_refused(machine.run("info"), "sudo", "install bazel-bootstrap")


def test_refuses_on_another_system(machine):
    machine.remove("npm")
    assert_refused(machine.run("info"), "Debian", "install bazel-bootstrap npm")


def test_refuses_where_apt_get_fails(machine):
    machine.put_apt_get(installs=None, status=100)
    assert_refused(machine.run("info"), "apt-get", "install bazel-bootstrap")


def test_refuses_where_the_package_is_of_no_use(machine):
    machine.put_apt_get(installs="echo bazel 9.0.0")
    assert_refused(machine.run("info"), "Bazel 4")


@pytest.mark.parametrize("script", [None, "exit 1"])
def test_refuses_without_python_3_11(machine, script):
    machine.put("bazel", DEBIAN_BAZEL)
    if script:
        machine.put("python3.11", script)
    else:
        machine.remove("python3.11")
    assert_refused(machine.run("info"), "Python 3.11", "install python3.11")


def test_python3_will_do_where_it_is_3_11(machine):
    machine.put("bazel", DEBIAN_BAZEL)
    os.rename(machine.programs / "python3.11", machine.programs / "python3")
    assert machine.run("info").returncode == 0

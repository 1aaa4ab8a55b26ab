"""Kept code: found again by another process at another path, and never run from a folder that others can write to."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numba
import pytest

import common
import nkisim
from devicetime import allocator, compiled

PACKAGE = Path(compiled.__file__).parent
ROOTS = [str(Path(str(module.__file__)).parents[1]) for module in (common, nkisim)]
SCRIPT = """
import numpy as np
from devicetime import allocator
allocator.lives(np.zeros(1, np.int64), np.zeros(1, np.int64), 1)
print(sum(allocator.lives.stats.cache_hits.values()))
"""


def hits(root, folder):
    """Functions that a process found compiled, with the package copied below `root`."""
    if not (root / "devicetime").exists():
        shutil.copytree(PACKAGE, root / "devicetime", ignore=shutil.ignore_patterns("__pycache__"))
    path = os.pathsep.join([str(root), *ROOTS, *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(folder)}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_kept_code_is_found_at_another_path_and_not_after_a_change(tmp_path):
    roots = [tmp_path / name for name in ("one", "two")]
    assert hits(roots[0], tmp_path) == 0
    assert hits(roots[1], tmp_path) == 1
    source = roots[1] / "devicetime" / "cost.py"
    text = source.read_text()
    source.unlink()  # a copy of a file that may be read-only
    source.write_text(text + "# changed\n")
    assert hits(roots[1], tmp_path) == 0


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled.tempfile, "gettempdir", lambda: str(tmp_path))
    compiled._folder.cache_clear()
    yield compiled._folder
    compiled._folder.cache_clear()


def test_the_folder_is_the_users_alone(folder, tmp_path):
    found = Path(folder())
    assert found.parent == tmp_path
    assert stat.S_IMODE(found.stat().st_mode) == stat.S_IRWXU


def test_a_folder_that_others_can_write_to_is_not_used(folder, tmp_path):
    usual = tmp_path / f"devicetime_{os.getuid()}"
    usual.mkdir()
    usual.chmod(0o777)
    assert Path(folder()) != usual


def test_a_link_is_not_followed(folder, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (tmp_path / f"devicetime_{os.getuid()}").symlink_to(elsewhere)
    assert Path(folder()).parent != elsewhere
    assert not list(elsewhere.iterdir())


def test_numbas_own_settings_stay():
    settings: Any = numba.config
    assert "devicetime" not in settings.CACHE_LOCATOR_CLASSES
    assert callable(allocator.lives)

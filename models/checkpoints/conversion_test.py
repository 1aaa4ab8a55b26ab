"""Conversions end whole or not at all, go on where they stopped, and notice damage."""

import functools
import json
import os
import signal
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

from models.checkpoints import CheckpointError, Part, convert, open_converted

DESCRIPTION = {"model": "test", "width": 4}


def tensors(number):
    return {
        f"{number}.weight": torch.full((4, 4), float(number)),
        f"{number}.codes": torch.ones(8).to(torch.float8_e4m3fn),
    }


class Made:
    """Parts that count how often they are made; one of them may fail."""

    def __init__(self, failing=None):
        self.count = [0, 0, 0]
        self.failing = failing

    def parts(self):
        return [Part(f"part_{number}.safetensors", functools.partial(self.make, number)) for number in range(3)]

    def make(self, number):
        if number == self.failing:
            raise CheckpointError("the source ends here")
        self.count[number] += 1
        return tensors(number)


def require_whole(folder):
    description, checkpoint = open_converted(folder)
    assert description == DESCRIPTION
    for number in range(3):
        for name, tensor in tensors(number).items():
            assert torch.equal(checkpoint.read(name).float(), tensor.float())
    assert not folder.with_name("out.partial").exists()
    assert sorted(path.name for path in folder.iterdir()) == [
        "manifest.json",
        *(f"part_{n}.safetensors" for n in range(3)),
    ]


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def test_whole(out):
    convert(out, DESCRIPTION, Made().parts())
    require_whole(out)


def test_goes_on_where_it_stopped(out):
    with pytest.raises(CheckpointError, match="ends here"):
        convert(out, DESCRIPTION, Made(failing=2).parts())
    assert not out.exists()
    made = Made()
    convert(out, DESCRIPTION, made.parts())
    assert made.count == [0, 0, 1]
    require_whole(out)


def test_a_damaged_part_is_made_again(out):
    with pytest.raises(CheckpointError):
        convert(out, DESCRIPTION, Made(failing=2).parts())
    path = out.with_name("out.partial") / "part_1.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    made = Made()
    convert(out, DESCRIPTION, made.parts())
    assert made.count == [0, 1, 1]
    require_whole(out)


KILLED = """
import os, signal, sys
from pathlib import Path
from models.checkpoints import Part, convert
from models.checkpoints import conversion
from models.checkpoints.conversion_test import DESCRIPTION, Made
save, saves = conversion.save_file, []
def save_half(tensors, path):
    save(tensors, path)
    saves.append(path)
    if len(saves) == 2:
        path.write_bytes(path.read_bytes()[:50])
        os.kill(os.getpid(), signal.SIGKILL)
conversion.save_file = save_half
convert(Path(sys.argv[1]), DESCRIPTION, Made().parts())
"""


def test_killed_while_writing(out):
    """A process that dies with a file half written: nothing under the final name, and what was whole stays."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    died = subprocess.run([sys.executable, "-c", KILLED, out], env=environment, check=False, capture_output=True)
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()
    assert not out.exists()
    assert (out.with_name("out.partial") / "part_1.safetensors.writing").stat().st_size == 50
    made = Made()
    convert(out, DESCRIPTION, made.parts())
    assert made.count == [0, 1, 1]
    require_whole(out)


def test_done_already(out):
    convert(out, DESCRIPTION, Made().parts())
    made = Made()
    convert(out, DESCRIPTION, made.parts())
    assert made.count == [0, 0, 0]
    path = out / "part_1.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(
        CheckpointError, match=r"part_1\.safetensors: expected: sha256 [0-9a-f]{64}; found: [0-9a-f]{64}"
    ):
        convert(out, DESCRIPTION, made.parts())


@pytest.mark.parametrize("finished", [True, False])
def test_another_conversion_is_not_mixed_in(out, finished):
    if finished:
        convert(out, DESCRIPTION, Made().parts())
    else:
        with pytest.raises(CheckpointError):
            convert(out, DESCRIPTION, Made(failing=2).parts())
    with pytest.raises(CheckpointError, match="of another conversion; width: expected: 5; found: 4; remove it"):
        convert(out, {**DESCRIPTION, "width": 5}, Made().parts())


def test_two_at_once(out):
    made = Made()
    inner = []

    def make():
        with pytest.raises(CheckpointError, match="another process is converting"):
            convert(out, DESCRIPTION, made.parts())
        inner.append(True)
        return tensors(0)

    convert(out, DESCRIPTION, [Part("part_0.safetensors", make), *made.parts()[1:]])
    assert inner
    require_whole(out)


def test_a_missing_or_short_file(out):
    convert(out, DESCRIPTION, Made().parts())
    path = out / "part_2.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    with pytest.raises(CheckpointError, match=r"part_2.*found"):
        open_converted(out)
    save_file({"2.weight": torch.zeros(100)}, path)
    found = path.stat().st_size
    with pytest.raises(CheckpointError, match=rf"part_2.*expected: {len(data)} bytes; found: {found}"):
        open_converted(out)
    path.unlink()
    with pytest.raises(CheckpointError, match=r"part_2.*No such file"):
        open_converted(out)


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "[]",
        "[" * 100_000,
        '{"version": 1}',
        '{"version": 2, "files": {}, "description": {}}',
        '{"version": 1, "files": {"../x": {"bytes": 1, "sha256": ""}}, "description": {}}',
    ],
)
def test_no_manifest(out, text):
    out.mkdir()
    if text is not None:
        (out / "manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"manifest\.json: expected: "):
        open_converted(out)


def test_a_tensor_in_two_files(out):
    """Only one of them would be read."""
    parts = [Part(f"part_{number}.safetensors", lambda: {"a": torch.ones(2)}) for number in range(2)]
    convert(out, DESCRIPTION, parts)
    with pytest.raises(CheckpointError, match=r"part_1\.safetensors: expected: tensors of no other file; found: a"):
        open_converted(out)


def test_a_file_that_is_not_of_the_conversion_stays(out):
    """What somebody has in a folder of that name is neither removed nor becomes part of the result."""
    partial = out.with_name("out.partial")
    partial.mkdir()
    (partial / "notes.txt").write_text("mine")
    made = Made()
    with pytest.raises(CheckpointError, match=r"notes\.txt: expected: only what an interrupted conversion left there"):
        convert(out, DESCRIPTION, made.parts())
    assert made.count == [0, 0, 0]
    assert [path.name for path in partial.iterdir()] == ["notes.txt"]
    assert not out.exists()


@pytest.mark.parametrize("name", [".", "part_1.safetensors", "part_1.safetensors.writing", "journal.json"])
def test_links_are_refused(out, name):
    """Somebody else's file would be written, or the result would lie elsewhere than under its name."""
    elsewhere = out.with_name("elsewhere")
    elsewhere.mkdir()
    partial = out.with_name("out.partial")
    if name == ".":
        partial.symlink_to(elsewhere)
    else:
        partial.mkdir()
        (partial / name).symlink_to(elsewhere / "file")
        (elsewhere / "file").write_text("mine")
    made = Made()
    with pytest.raises(CheckpointError, match=r"expected: only what an interrupted .*; found: a link; move it away"):
        convert(out, DESCRIPTION, made.parts())
    assert made.count == [0, 0, 0]
    assert [path.read_text() for path in elsewhere.iterdir()] == ["mine"] * (name != ".")
    assert not out.exists()


def test_parts_that_only_the_journal_has_are_forgotten(out):
    """Such as those of a version that divided a checkpoint otherwise: the manifest names what is there."""
    with pytest.raises(CheckpointError):
        convert(out, DESCRIPTION, Made(failing=2).parts())
    path = out.with_name("out.partial") / "journal.json"
    journal = json.loads(path.read_text())
    journal["files"]["part_9.safetensors"] = journal["files"]["part_0.safetensors"]
    path.write_text(json.dumps(journal))
    convert(out, DESCRIPTION, Made().parts())
    require_whole(out)


def test_a_difference_is_named_in_few_words(out):
    source = {f"shard_{number}": [number, number] for number in range(200)}
    convert(out, {"source": source, "names": list(range(200))}, Made().parts())
    for other, words in (
        (
            {"source": source | {"shard_77": [1, 1]}, "names": []},
            r"source: shard_77: expected: \[1, 1\]; found: \[77, 77\]",
        ),
        ({"source": source, "names": [1]}, r"names: expected: \[1\]; found: \[0, 1, 2, 3, 4, 5, \.\.\.\]"),
        ({"source": source}, r"names: expected: None; found: .*"),
    ):
        with pytest.raises(CheckpointError, match=f"of another conversion; {words}; remove it"):
            convert(out, other, Made().parts())


def test_a_destination_that_is_no_folder_is_refused_before_work(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    made = Made()
    for name in ("file", "link", "empty"):
        with pytest.raises(CheckpointError, match=rf"{name}/manifest\.json: expected: the manifest"):
            convert(tmp_path / name, DESCRIPTION, made.parts())
    assert made.count == [0, 0, 0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file", "link"]


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot be written: Not a directory"):
        convert(tmp_path / "file" / "out", DESCRIPTION, Made().parts())


def test_a_part_that_cannot_be_written(out):
    """As on a full disk: what safetensors raises is no OSError."""
    (out.with_name("out.partial") / "part_1.safetensors.writing").mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"part_1\.safetensors\.writing cannot be written: "):
        convert(out, DESCRIPTION, Made().parts())
    assert not out.exists()


def test_manifest_has_hashes(out):
    convert(out, DESCRIPTION, Made().parts())
    manifest = json.loads((out / "manifest.json").read_text())
    for name, entry in manifest["files"].items():
        assert entry["bytes"] == (out / name).stat().st_size
        shown = subprocess.run(["sha256sum", out / name], check=True, capture_output=True).stdout.split()[0].decode()
        assert entry["sha256"] == shown

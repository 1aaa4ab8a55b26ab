"""Checkpoints are read where they are whole, and refused by name where they are not."""

import itertools
import json
import os

import pytest
import torch
from safetensors.torch import save_file

from models.checkpoints import CheckpointError, Expected, open_checkpoint

TENSORS = {
    "a.weight": torch.arange(12, dtype=torch.float32).reshape(3, 4),
    "b.weight": torch.ones(5, dtype=torch.bfloat16),
    "c.codes": torch.ones(2, 8).to(torch.float8_e4m3fn),
}
SHARDS = {"one.safetensors": ("a.weight",), "two.safetensors": ("b.weight", "c.codes")}


@pytest.fixture
def folder(tmp_path):
    for shard, names in SHARDS.items():
        save_file({name: TENSORS[name] for name in names}, tmp_path / shard)
    weight_map = {name: shard for shard, names in SHARDS.items() for name in names}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return tmp_path


def edit_index(folder, change):
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    change(index["weight_map"])
    path.write_text(json.dumps(index))


def test_shards_are_one_checkpoint(folder):
    checkpoint = open_checkpoint(folder)
    assert set(checkpoint.tensors) == set(TENSORS)
    for name, tensor in TENSORS.items():
        read = checkpoint.read(name)
        assert read.dtype == tensor.dtype
        assert torch.equal(read.float(), tensor.float())


def test_parts_of_a_tensor(folder):
    checkpoint = open_checkpoint(folder)
    assert torch.equal(checkpoint.read("a.weight", slice(1, 3)), TENSORS["a.weight"][1:3])
    assert torch.equal(checkpoint.read("a.weight", slice(0, 3), slice(2, 4)), TENSORS["a.weight"][:, 2:])


def test_one_file_or_a_folder_with_one(folder):
    (folder / "model.safetensors.index.json").unlink()
    assert set(open_checkpoint(folder / "one.safetensors").tensors) == {"a.weight"}
    (folder / "two.safetensors").unlink()
    assert set(open_checkpoint(folder).tensors) == {"a.weight"}


def test_only_pages_that_are_touched_are_read(tmp_path):
    """A view of one row in 256 MB adds less than 16 MB to what the process holds."""

    def resident_bytes():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    save_file({"large": torch.zeros(64, 2**20, dtype=torch.float32)}, tmp_path / "large.safetensors")
    checkpoint = open_checkpoint(tmp_path)
    before = resident_bytes()
    assert checkpoint.read("large", slice(7, 8)).sum() == 0
    whole = checkpoint.read("large")
    assert resident_bytes() - before < 2**24
    assert whole.sum() == 0
    assert resident_bytes() - before > 2**27
    del whole
    assert resident_bytes() - before < 2**24


def test_cut_short_names_the_tensor(folder):
    path = folder / "two.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:-3])
    with pytest.raises(
        CheckpointError, match=rf"two.*c\.codes ends at .*expected: {len(data)} bytes; found: {len(data) - 3}"
    ):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no such header"),
        (b"\xff" * 100, "no such header"),
        (b"\x02\0\0\0\0\0\0\0[]", "no such header"),
        ((100_000).to_bytes(8, "little") + b"[" * 100_000, "no such header"),
        (b"\x1e\0\0\0\0\0\0\0" + b'{"a": {"dtype": "F32"}}       ', "no such header"),
    ],
)
def test_other_files(tmp_path, data, words):
    path = tmp_path / "x.safetensors"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=words):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}, "a: expected: 8 bytes .* found: 4"),
        ({"dtype": "F4", "shape": [1], "data_offsets": [0, 4]}, "a: expected: one of F64.* found: F4"),
        ({"dtype": "F32", "shape": ["x"], "data_offsets": [0, 4]}, "no such header"),
        ({"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}, "no such header"),
        ({"dtype": "F32", "shape": [1], "data_offsets": [0, 3]}, "expected: .* found"),
    ],
)
def test_headers_that_contradict_themselves(tmp_path, entry, words):
    text = json.dumps({"a": entry}).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))
    with pytest.raises(CheckpointError, match=words):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("offsets", "words"),
    [
        ([(0, 4), (0, 4)], "b: expected: to begin at byte 4, where .* found: 0"),
        ([(0, 4), (2, 6)], "b: expected: to begin at byte 4, where .* found: 2"),
        ([(0, 4), (8, 12)], "b: expected: to begin at byte 4, where .* found: 8"),
        ([(4, 8), (8, 12)], "a: expected: to begin at byte 0, where .* found: 4"),
    ],
)
def test_tensors_in_one_another_or_apart(tmp_path, offsets, words):
    entries = {name: {"dtype": "F32", "shape": [1], "data_offsets": at} for name, at in zip("ab", offsets, strict=True)}
    path = tmp_path / "x.safetensors"
    text = json.dumps(entries).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(max(end for _, end in offsets)))
    with pytest.raises(CheckpointError, match=words):
        open_checkpoint(path)


def test_longer_than_its_header_says(folder):
    file = folder / "one.safetensors"
    data = file.read_bytes()
    file.write_bytes(data + b"\0")
    with pytest.raises(CheckpointError, match=rf"expected: {len(data)} bytes, as .* found: {len(data) + 1}"):
        open_checkpoint(folder)


def test_a_tensor_in_two_shards(folder):
    """Readers differ in which of the two they take."""
    save_file({"a.weight": TENSORS["a.weight"] + 1, "b.weight": TENSORS["b.weight"]}, folder / "two.safetensors")
    edit_index(folder, lambda weight_map: weight_map.pop("c.codes"))
    with pytest.raises(CheckpointError, match=r"a\.weight: expected: in one file; found: in one.* and two"):
        open_checkpoint(folder)


def test_missing_shard(folder):
    (folder / "one.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"one\.safetensors: expected: a safetensors file; found: No such file"):
        open_checkpoint(folder)


def test_index_that_names_too_much(folder):
    edit_index(folder, lambda weight_map: weight_map.update({"d.weight": "one.safetensors"}))
    with pytest.raises(CheckpointError, match=r"one\.safetensors: expected: d\.weight"):
        open_checkpoint(folder)


@pytest.mark.parametrize("name", ["../one.safetensors", "/one.safetensors", "one\0.safetensors"])
def test_index_that_leads_elsewhere(folder, name):
    edit_index(folder, lambda weight_map: weight_map.update({"d.weight": name}))
    with pytest.raises(CheckpointError, match=r"names of files beside it; found: '.*one"):
        open_checkpoint(folder)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": 3}', "[" * 100_000])
def test_index_that_is_none(folder, text):
    (folder / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CheckpointError, match="weight_map"):
        open_checkpoint(folder)


def test_nothing_there(tmp_path):
    with pytest.raises(CheckpointError, match="found: nothing"):
        open_checkpoint(tmp_path / "absent")
    with pytest.raises(CheckpointError, match="found: nothing"):
        open_checkpoint(tmp_path / ("long" * 1000))
    with pytest.raises(CheckpointError, match="found: neither"):
        open_checkpoint(tmp_path)


def test_a_shard_that_is_no_file(folder):
    """A pipe would keep its reader waiting."""
    shard = folder / "one.safetensors"
    shard.unlink()
    os.mkfifo(shard)
    with pytest.raises(
        CheckpointError, match=r"one\.safetensors: expected: a safetensors file; found: no regular file"
    ):
        open_checkpoint(folder)


def test_two_files_without_an_index(folder):
    (folder / "model.safetensors.index.json").unlink()
    with pytest.raises(CheckpointError, match=r"expected: one file .* found: 2"):
        open_checkpoint(folder)


def test_required_tensors(folder):
    checkpoint = open_checkpoint(folder)
    right = {"a.weight": Expected((3, 4), (torch.float32,)), "b.weight": Expected((5,), (torch.bfloat16,))}
    assert checkpoint.require(right.items()) == set(right)
    with pytest.raises(CheckpointError, match=r"a\.weight: expected: shape \[4, 3\]; found: \[3, 4\]"):
        checkpoint.require([("a.weight", Expected((4, 3), (torch.float32,)))])
    with pytest.raises(CheckpointError, match=r"b\.weight: expected: torch.float32; found: torch.bfloat16"):
        checkpoint.require([("b.weight", Expected((5,), (torch.float32,)))])
    with pytest.raises(CheckpointError, match=r"expected: d\.weight; found: 3 tensors"):
        checkpoint.require([("d.weight", Expected((5,), (torch.float32,)))])
    checkpoint.require_no_others(TENSORS)
    with pytest.raises(CheckpointError, match=r"only this model's tensors; found: c\.codes"):
        checkpoint.require_no_others(right)


def test_the_first_missing_tensor_ends_the_search(folder):
    """However many a config asks for."""
    without_end = ((f"{layer}.weight", Expected((5,), (torch.float32,))) for layer in itertools.count())
    with pytest.raises(CheckpointError, match=r"expected: 0\.weight; found: 3 tensors, none of this name"):
        open_checkpoint(folder).require(without_end)

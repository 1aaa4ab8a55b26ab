"""Converted checkpoints: values, alignment, shards, and that a failure leaves nothing."""

import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from kernels.qkv_cte.checkpoint import convert
from kernels.qkv_cte.checkpoint.rules import pack_linear

HIDDEN, HEAD_DIM, FFN = 256, 32, 384


def block(number, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(number)
    prefix, tensors = f"blocks.{number}.", {}

    def random(*shape):
        return torch.randn(*shape, generator=generator).to(dtype)

    for attention in ("attn1", "attn2"):
        for linear in ("to_q", "to_k", "to_v", "to_out.0"):
            tensors[f"{prefix}{attention}.{linear}.weight"] = random(HIDDEN, HIDDEN)
            tensors[f"{prefix}{attention}.{linear}.bias"] = random(HIDDEN)
        for norm in ("norm_q", "norm_k"):
            tensors[f"{prefix}{attention}.{norm}.weight"] = random(HIDDEN)
    tensors |= {f"{prefix}ffn.net.0.proj.weight": random(FFN, HIDDEN), f"{prefix}ffn.net.0.proj.bias": random(FFN)}
    tensors |= {f"{prefix}ffn.net.2.weight": random(HIDDEN, FFN), f"{prefix}ffn.net.2.bias": random(HIDDEN)}
    return tensors | {
        f"{prefix}scale_shift_table": random(1, 6, HIDDEN).float(),
        f"{prefix}norm2.weight": random(HIDDEN),
    }


def outside():
    """Odd sizes and dtypes that nothing may shift or round."""
    return {
        "patch_embedding.bias": torch.arange(3, dtype=torch.bfloat16),
        "flags": torch.tensor([True, False, True]),
        "step": torch.tensor(2**40 + 1),
        "nan": torch.tensor([torch.nan, -0.0], dtype=torch.float64),
        "bytes": torch.arange(7, dtype=torch.uint8),
        "empty": torch.zeros(0, 4),
    }


def run(*arguments):
    return convert.main([*map(str, arguments), "--head-dim", str(HEAD_DIM)])


def bits(tensor):
    return tensor.reshape(-1).view(torch.uint8).tolist()


def lane_order(heads):
    """Old lane of each new one, spelled out."""
    order = []
    for head in range(heads):
        order += [head * HEAD_DIM + 2 * j for j in range(HEAD_DIM // 2)]
        order += [head * HEAD_DIM + 2 * j + 1 for j in range(HEAD_DIM // 2)]
    return torch.tensor(order)


def dequantised(converted, name):
    packed = converted[name].float()
    return packed.permute(1, 0, 2).reshape(packed.shape[1], -1) * converted[f"{name}_scales"].T


def test_a_file(tmp_path):
    tensors = block(7) | outside()
    save_file(tensors, tmp_path / "source.safetensors", {"format": "pt"})
    assert run(tmp_path / "source.safetensors", tmp_path / "packed.safetensors") == 0
    converted = load_file(tmp_path / "packed.safetensors")
    order, quantised = lane_order(HIDDEN // HEAD_DIM), 0
    for name, tensor in tensors.items():
        rotated = "attn1" in name and any(part in name for part in ("to_q", "to_k", "norm_q", "norm_k"))
        expected = tensor[order] if rotated else tensor
        if ("attn" in name or "ffn" in name) and name.endswith("weight") and "norm" not in name:
            quantised += 1
            assert converted[name].dtype is torch.float8_e4m3fn
            assert tuple(converted[name].shape) == (tensor.shape[1] // 4, tensor.shape[0], 4)
            amax = expected.float().abs().amax(1, keepdim=True)
            # Half of a step of three fraction bits, at most a 28th of the largest code.
            assert ((dequantised(converted, name) - expected.float()).abs() <= amax / 28 * 1.001).all()
            assert torch.equal(converted[f"{name}_scales"], (amax / 448).T)
        else:
            assert converted[name].dtype is tensor.dtype
            assert converted[name].shape == tensor.shape
            assert bits(converted[name]) == bits(expected)
    assert quantised == 10
    assert len(converted) == len(tensors) + quantised
    with safe_open(tmp_path / "packed.safetensors", framework="pt") as opened:
        assert opened.metadata() == {"format": "pt"}
    assert sorted(os.listdir(tmp_path)) == ["packed.safetensors", "source.safetensors"]


def sharded(folder):
    folder.mkdir()
    shards = {"a.safetensors": block(0) | outside(), "b.safetensors": block(1)}
    for name, tensors in shards.items():
        save_file(tensors, folder / name)
    weight_map = {tensor: name for name, tensors in shards.items() for tensor in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return shards


def test_shards_become_shards(tmp_path):
    shards = sharded(tmp_path / "source")
    assert run(tmp_path / "source", tmp_path / "packed") == 0
    assert sorted(os.listdir(tmp_path)) == ["packed", "source"]
    (index,) = (tmp_path / "packed").glob("*.json")
    found: dict[str, str] = {}
    for name, tensor_names in shards.items():
        converted = load_file(tmp_path / "packed" / name)
        assert converted.keys() >= tensor_names.keys()
        found |= dict.fromkeys(converted, name)
    assert json.loads(index.read_text())["weight_map"] == found


def test_packed_linear_is_what_the_kernels_read():
    weight = torch.randn(6, 8)
    packed, scales = pack_linear(weight)
    for channel in range(6):
        for row in range(8):
            code = (weight[channel, row] / (weight[channel].abs().max() / 448)).to(torch.float8_e4m3fn)
            assert (
                abs(packed[row // 4, channel, row % 4].float() - code.float()) <= 32.0 * (abs(code.float()) >= 256) + 16
            )
    assert tuple(scales.shape) == (1, 6)


def truncated(path):
    path.write_bytes(path.read_bytes()[:-1])


def replaced(path, **changes):
    tensors = load_file(path)
    save_file(tensors | {name.replace("__", "."): value for name, value in changes.items()}, path)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (truncated, "b.safetensors: Error while deserializing header"),
        (lambda path: path.unlink(), "index.json names 'b.safetensors'; accepted: files that lie beside it"),
        (lambda path: path.write_text("{}"), "b.safetensors: Error while deserializing header"),
        (
            lambda path: replaced(path, blocks__1__attn1__to_v__weight=torch.full((256, 256), torch.nan)),
            "b.safetensors: blocks.1.attn1.to_v.weight has NaN or infinite values; accepted: finite ones",
        ),
        (
            lambda path: replaced(path, blocks__1__attn1__to_q__weight=torch.zeros(256, 100)),
            r"to_q.weight is [256, 100]; accepted: [output, input], input a multiple of 128",
        ),
        (
            lambda path: replaced(path, blocks__1__attn1__norm_q__weight=torch.zeros(250)),
            "norm_q.weight is [250]; accepted: whole heads of 32 in dim 0",
        ),
        (
            lambda path: replaced(path, blocks__1__attn1__to_q__bias=torch.zeros(0)),
            "to_q.bias is [0]; accepted: whole heads of 32 in dim 0",
        ),
        (
            lambda path: replaced(path, blocks__0__attn1__to_q__weight=torch.zeros(256, 256)),
            "two tensors are to be called blocks.0.attn1.to_q.weight; accepted: a file that is not converted yet",
        ),
        (
            lambda path: replaced(path, blocks__0__attn1__to_q__weight_scales=torch.zeros(1)),
            "two tensors are to be called blocks.0.attn1.to_q.weight_scales; accepted: a file that is not",
        ),
        (
            lambda path: replaced(path, blocks__1__attn2__to_q__weight=torch.zeros(64, 4, 256).to(torch.float8_e4m3fn)),
            "to_q.weight is torch.float8_e4m3fn; accepted: torch.float32",
        ),
        (
            lambda path: replaced(path, blocks__1__attn2__to_q__weight_scales=torch.zeros(1)),
            "two tensors are to be called blocks.1.attn2.to_q.weight_scales; accepted: a file that is not",
        ),
    ],
)
def test_one_bad_tensor_and_nothing_is_left(tmp_path, capsys, spoil, message):
    sharded(tmp_path / "source")
    spoil(tmp_path / "source" / "b.safetensors")
    with pytest.raises(SystemExit):
        run(tmp_path / "source", tmp_path / "packed")
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith("convert_checkpoint: error: ")
    assert message in line
    assert os.listdir(tmp_path) == ["source"]


def test_what_is_there_is_kept(tmp_path, capsys):
    save_file(block(0), tmp_path / "source.safetensors")
    sharded(tmp_path / "shards")
    before = (tmp_path / "source.safetensors").read_bytes()
    (tmp_path / "old").mkdir()
    for source, destination, message in (
        ("source.safetensors", "source.safetensors", "is the file to read"),
        ("source.safetensors", "old", "is a folder"),
        ("shards", "old", "exists; accepted: the name of a new folder"),
        ("shards", "nowhere/packed", "cannot be written: No such file"),
        ("nothing.safetensors", "x.safetensors", "No such file"),
        ("old", "x", "has 0 safetensors files and no index"),
    ):
        with pytest.raises(SystemExit):
            run(tmp_path / source, tmp_path / destination)
        assert message in capsys.readouterr().err
    assert (tmp_path / "source.safetensors").read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["old", "shards", "source.safetensors"]


def test_memory_does_not_grow_with_the_file(tmp_path):
    """48 tensors of 8 MiB: what one costs, not what all do."""
    large = {f"blocks.{n}.ffn.net.2.weight": torch.zeros(2048, 1024, dtype=torch.float32) for n in range(48)}
    peaks = []
    for count in (2, 48):
        save_file(dict(list(large.items())[:count]), tmp_path / "source.safetensors")
        script = (
            "import resource, sys; from kernels.qkv_cte.checkpoint import convert; convert.main(sys.argv[1:]); "
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
        )
        ran = subprocess.run(
            [sys.executable, "-c", script, tmp_path / "source.safetensors", tmp_path / "packed.safetensors"],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        peaks.append(int(ran.stdout.split()[-1]) * 1024)
    print(peaks)
    assert peaks[1] - peaks[0] < 46 * 8 * 2**20 / 4

"""Published checkpoints in, packed ones out: values, refusals, and memory."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys

import pytest
import torch
from diffusers import WanTransformer3DModel
from safetensors.torch import load_file, save_file

from common import row_mx
from kernels.qkv_cte.host.lanes import to_rotate_half
from models.checkpoints import CheckpointError
from models.wan22 import convert, packing
from models.wan22.config import T2V_A14B, read_config
from models.wan22.conversion import convert_checkpoint, open_wan
from models.wan22.packing import packed_tensors
from models.wan22.projections import FFN_UP, block_projections, choose_precisions
from models.wan22.random_checkpoint import write_checkpoint


@pytest.fixture(scope="session")
def published(tmp_path_factory):
    """A pipeline's folder with two experts of one block each, in shards."""
    folder = tmp_path_factory.mktemp("published")
    for seed, expert in enumerate(("transformer", "transformer_2")):
        write_checkpoint(folder / expert, layers=1, seed=seed)
    return folder


def tensors_of(folder):
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


def test_values(published, tmp_path):
    """Every code, scale and lane, from the layouts' description."""
    convert_checkpoint(published, tmp_path / "out", (FFN_UP,))
    converted = open_wan(tmp_path / "out")
    assert converted.experts == ("transformer", "transformer_2")
    expected = dict(packed_tensors(converted.config, converted.precisions))
    assert set(converted.checkpoint.tensors) == {
        f"{expert}.{name}" for expert in converted.experts for name in expected
    }
    for expert in converted.experts:
        source, read = tensors_of(published / expert), converted.checkpoint.read
        names = [f"blocks.0.attn1.to_{which}" for which in "qkv"]
        weights = [source[f"{name}.weight"] for name in names]
        biases = [source[f"{name}.bias"] for name in names]
        weights[:2] = [to_rotate_half(weight, 128, dim=0) for weight in weights[:2]]
        biases[:2] = [to_rotate_half(bias, 128) for bias in biases[:2]]
        codes, scales = row_mx.quantise_columns(torch.cat(weights).T)
        qkv = f"{expert}.blocks.0.attn1.to_qkv"
        packed = read(f"{qkv}.weight").view(torch.uint8)
        assert torch.equal(packed, row_mx.pack_weight(codes).view(torch.uint8))
        assert torch.equal(read(f"{qkv}.weight_scales"), scales)
        assert torch.equal(read(f"{qkv}.bias")[0], torch.cat(biases).float())
        norm = source["blocks.0.attn1.norm_q.weight"]
        assert torch.equal(read(f"{expert}.blocks.0.attn1.norm_q.weight"), to_rotate_half(norm, 128))
        up = "blocks.0.ffn.net.0.proj.weight"
        assert torch.equal(read(f"{expert}.{up}"), source[up].T)
        for name in ("blocks.0.attn2.norm_k.weight", "blocks.0.attn2.norm_q.weight", "proj_out.bias"):
            assert torch.equal(read(f"{expert}.{name}"), source[name])
        for name in ("blocks.0.scale_shift_table", "condition_embedder.time_embedder.linear_1.weight"):
            assert torch.equal(read(f"{expert}.{name}"), source[name].float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_weights_of_other_types(published, tmp_path, dtype):
    """They are quantised as they are, not by way of bf16."""

    def widen(tensors, name):
        shape, generator = tensors[name].shape, torch.Generator().manual_seed(5)
        tensors[name] = torch.randn(shape, generator=generator).to(dtype)

    folder = changed(published, tmp_path, widen)
    convert_checkpoint(folder, tmp_path / "out")
    name, read = "blocks.0.ffn.net.2.weight", open_wan(tmp_path / "out").checkpoint.read
    codes, scales = row_mx.quantise_columns(tensors_of(folder)[name].T)
    assert torch.equal(read(f"transformer.{name}").view(torch.uint8), row_mx.pack_weight(codes).view(torch.uint8))
    assert torch.equal(read(f"transformer.{name}_scales"), scales)


def test_what_diffusers_keeps_in_fp32_is_kept_in_fp32():
    """Of everything that is no projection of a block."""
    config = dataclasses.replace(T2V_A14B, num_layers=1, image_dim=64, added_kv_proj_dim=5120)
    projections = [spec.name for spec in block_projections(config)]
    kinds = {}
    for name, expected in packed_tensors(config, choose_precisions(config)):
        if not any(f".{projection}." in name for projection in projections):
            kinds[name] = expected.dtypes
    in_fp32 = WanTransformer3DModel._keep_in_fp32_modules
    for name, dtypes in kinds.items():
        kept = any(part in name.split(".") for part in in_fp32)
        assert dtypes == ((torch.float32 if kept else torch.bfloat16),), name
    assert set(kinds.values()) == {(torch.float32,), (torch.bfloat16,)}


def test_command(published, tmp_path, capsys):
    out = tmp_path / "out"
    for _ in range(2):
        assert convert.main([str(published), str(out), "--bf16", "attn2.to_k,attn2.to_v"]) == 0
        assert f"{out}: transformer, transformer_2, 88 tensors" in capsys.readouterr().out
    for arguments, words in (
        ([published, tmp_path / "b", "--bf16", "attn9"], "projection 'attn9'; accepted: attn1.to_qkv"),
        ([published, tmp_path / "b", "--bf16", ","], "comma-separated names"),
        ([tmp_path / "absent", tmp_path / "b"], "expected: a folder with transformer"),
        ([published, out], "is of another conversion; precisions: "),
    ):
        with pytest.raises(SystemExit) as ended:
            convert.main([str(argument) for argument in arguments])
        assert ended.value.code == 2
        message = capsys.readouterr().err.strip().splitlines()[-1]
        assert words in message
        assert not (tmp_path / "b").exists()


def changed(published, tmp_path, change):
    """A copy of the first expert with one tensor's file changed."""
    folder = tmp_path / "transformer"
    shutil.copytree(published / "transformer", folder)
    name = "blocks.0.ffn.net.2.weight"
    (file,) = (file for file in folder.glob("*.safetensors") if name in load_file(file))
    tensors = load_file(file)
    change(tensors, name)
    save_file(tensors, file)
    return folder


def put(index, value):
    def change(tensors, name):
        tensors[name][index] = value

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda tensors, name: tensors.pop(name), r"expected: blocks\.0\.ffn\.net\.2\.weight, as .* says"),
        (
            lambda tensors, name: tensors.update({name: tensors[name][:, :128].contiguous()}),
            r"ffn\.net\.2\.weight: expected: shape \[256, 384\]; found: \[256, 128\]",
        ),
        (
            lambda tensors, name: tensors.update({name: tensors[name].to(torch.float8_e4m3fn)}),
            r"ffn\.net\.2\.weight: expected: .*bfloat16 or .*; found: torch.float8_e4m3fn",
        ),
        (put((7, 300), torch.nan), r"ffn\.net\.2\.weight: expected: finite values; found: nan at \[7, 300\]"),
        (put((200, 3), torch.inf), r"ffn\.net\.2\.weight: expected: finite values; found: inf at \[200, 3\]"),
    ],
)
def test_wrong_checkpoints(published, tmp_path, change, words, monkeypatch):
    monkeypatch.setattr(packing, "CHANNELS_AT_A_TIME", 128)
    with pytest.raises(CheckpointError, match=words):
        convert_checkpoint(changed(published, tmp_path, change), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_diffusers_ignores_is_ignored(published, tmp_path):
    extra = "blocks.0.attn2.norm_added_q.weight"
    folder = changed(published, tmp_path, lambda tensors, name: tensors.update({extra: tensors[name][0].clone()}))
    (index,) = folder.glob("*.index.json")
    held = json.loads(index.read_text())
    held["weight_map"][extra] = held["weight_map"]["blocks.0.ffn.net.2.weight"]
    index.write_text(json.dumps(held))
    convert_checkpoint(folder, tmp_path / "out")
    assert not [name for name in open_wan(tmp_path / "out").checkpoint.tensors if "norm_added_q" in name]


def test_tensors_of_another_model(tmp_path):
    write_checkpoint(tmp_path / "transformer", layers=2, shard_size="1GB")
    config = tmp_path / "transformer" / "config.json"
    whole = config.read_text()
    config.write_text(whole.replace('"num_layers": 2', f'"num_layers": {10**30}'))
    with pytest.raises(CheckpointError, match=r"expected: blocks\.2\..*; found: .* tensors, none of this name"):
        convert_checkpoint(tmp_path / "transformer", tmp_path / "out")
    config.write_text(whole.replace('"num_layers": 2', '"num_layers": 1'))
    with pytest.raises(CheckpointError, match=r"only this model's tensors; found: blocks\.1\.attn1\.norm_k\.weight"):
        convert_checkpoint(tmp_path / "transformer", tmp_path / "out")


def test_experts_that_differ(published, tmp_path):
    shutil.copytree(published / "transformer", tmp_path / "transformer")
    write_checkpoint(tmp_path / "transformer_2", layers=2)
    with pytest.raises(CheckpointError, match="experts of one config; found: different ones"):
        convert_checkpoint(tmp_path, tmp_path / "out")


def test_a_checkpoint_of_another_model_is_not_opened(published, tmp_path):
    convert_checkpoint(published, tmp_path / "out")
    manifest = tmp_path / "out" / "manifest.json"
    whole = manifest.read_text()
    manifest.write_text(whole.replace('"num_attention_heads": 2', '"num_attention_heads": 4'))
    with pytest.raises(CheckpointError, match=r"expected: shape \[512, 16, 1, 2, 2\]; found: \[256, "):
        open_wan(tmp_path / "out")
    manifest.write_text(whole.replace('"num_layers": 1', f'"num_layers": {10**30}'))
    with pytest.raises(CheckpointError, match=r"expected: transformer\.blocks\.1\..*; found: 92 tensors, none of this"):
        open_wan(tmp_path / "out")
    experts = json.dumps(["transformer", "transformer_2"])
    described = json.dumps(json.loads(whole))
    for other in (
        described.replace('"row_mx"', '"mxfp4"'),
        described.replace(experts, json.dumps(["transformer_2", "transformer"])),
        described.replace(experts, "[]"),
        described.replace('"ffn.net.2": "row_mx"', '"ffn.net.3": "row_mx"'),
    ):
        assert other != described
        manifest.write_text(other)
        with pytest.raises(CheckpointError, match="expected: a converted Wan checkpoint"):
            open_wan(tmp_path / "out")


MEASURED = """
import sys
from pathlib import Path
from models.wan22.conversion import convert_checkpoint
from models.wan22.random_checkpoint import write_checkpoint
def peak():
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024
before = peak()
convert_checkpoint(Path(sys.argv[1]), Path(sys.argv[2]))
print(before, peak())
"""


def test_memory(tmp_path):
    """A checkpoint of 400 MB in tensors of up to 13 MB, one after the other."""
    write_checkpoint(tmp_path / "transformer", heads=8, layers=12, shard_size="200MB", ffn_dim=4096, freq_dim=64)
    stored = sum(file.stat().st_size for file in (tmp_path / "transformer").glob("*.safetensors"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", MEASURED, str(tmp_path / "transformer"), str(tmp_path / "out")]
    finished = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    before, peak = map(int, finished.stdout.split())
    tensors = dict(packed_tensors(config := read_config(tmp_path / "transformer"), choose_precisions(config)))
    largest = 2 * max(torch.Size(wanted.shape).numel() for wanted in tensors.values())
    print(f"stored {stored:,}, largest tensor {largest:,}, before {before:,}, peak {peak:,}")
    assert stored > 4e8
    assert peak < 2 * largest + 2**30
    # The allowance is for the interpreter and torch; what the conversion adds is less than 2 of the largest tensor.
    assert peak - before < 2 * largest + 2**26

"""Checkpoints: transformers' and fp8 ones are read part by part, converted ones say the same, others are refused."""

import dataclasses
import json
import re
import shutil

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from models.checkpoints import CheckpointError
from models.deepseek_v32 import checkpoint
from models.deepseek_v32.hub import dequantise
from models.deepseek_v32.packing import packed_tensors
from models.deepseek_v32.testing import make_oracle, save, tiny_oracle
from models.deepseek_v32.tiny import TINY
from models.deepseek_v32.weights import ExpertWeights, find

BF16, FP32 = torch.bfloat16, torch.float32
WIDE = dataclasses.replace(
    TINY, hidden_size=200, intermediate_size=300, moe_intermediate_size=136, num_hidden_layers=2, q_lora_rank=130
)
"""Matrices that end within a block of scales, and whose halves begin within one."""

QUANTISED = ("_proj.weight", "q_a_proj.weight", "kv_a_proj_with_mqa.weight", "wq_b.weight", "wk.weight")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return save(tiny_oracle(), tmp_path_factory.mktemp("saved"), BF16)


@pytest.fixture
def folder(saved, tmp_path):
    """A copy to spoil."""
    return shutil.copytree(saved, tmp_path / "copy")


def all_equal(config, one, other):
    return all(torch.equal(find(one, p.name), find(other, p.name)) for p in packed_tensors(config))


def test_every_tensor_arrives(saved):
    """Against the oracle's own parameters: each value is there once, in the layout that its name says."""
    config, weights = checkpoint.load(saved, FP32)
    assert config == TINY
    block = tiny_oracle().model.layers[2]
    at, ours = block.self_attn, weights.layers[2]
    assert torch.equal(ours.attention.wq_b, at.q_b_proj.weight.T)
    keys_values = at.kv_b_proj.weight.reshape(TINY.num_attention_heads, -1, TINY.kv_lora_rank)
    assert torch.equal(ours.attention.q_absorb, keys_values[:, : TINY.qk_nope_head_dim])
    assert torch.equal(ours.attention.out_absorb, keys_values[:, TINY.qk_nope_head_dim :])
    assert isinstance(ours.mlp, ExpertWeights)
    assert torch.equal(ours.mlp.experts[5].up, block.mlp.experts.gate_up_proj[5].chunk(2)[1])
    assert torch.equal(ours.mlp.correction, block.mlp.gate.e_score_correction_bias)
    assert torch.equal(weights.head, tiny_oracle().lm_head.weight)
    stored = sum(tensor.numel() for tensor in tiny_oracle().state_dict().values())
    assert sum(find(weights, packed.name).numel() for packed in packed_tensors(config)) == stored


def test_what_stays_fp32(saved):
    """Norms, and what chooses positions and experts."""
    _, weights = checkpoint.load(saved, BF16)
    for packed in packed_tensors(TINY):
        chooses = packed.name.endswith(("router", "head_weights"))
        expected = FP32 if chooses or len(packed.shape) == 1 else BF16
        assert find(weights, packed.name).dtype == expected, packed.name


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_have_the_whole_between_them(saved, ranks):
    _, whole = checkpoint.load(saved, BF16)
    parts = [checkpoint.load(saved, BF16, rank, ranks)[1] for rank in range(ranks)]
    for packed in packed_tensors(TINY):
        pieces = [find(part, packed.name) for part in parts]
        if packed.split is None:
            assert all(torch.equal(piece, find(whole, packed.name)) for piece in pieces)
        else:
            assert torch.equal(torch.cat(pieces, packed.split), find(whole, packed.name))


def quantise(folder):
    """Makes a saved checkpoint fp8 as published: codes and a scale for each 128 x 128 block, by plain loops."""
    for file in folder.glob("*.safetensors"):
        tensors = {}
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118
                tensors[name] = opened.get_tensor(name)
        for name in [name for name in tensors if name.endswith(QUANTISED) and "weights_proj" not in name]:
            rows, columns = tensors[name].shape
            scales = torch.empty(-(-rows // 128), -(-columns // 128))
            codes = torch.empty(rows, columns, dtype=torch.float8_e4m3fn)
            for r in range(scales.shape[0]):
                for c in range(scales.shape[1]):
                    block = slice(128 * r, 128 * r + 128), slice(128 * c, 128 * c + 128)
                    values = tensors[name][block].float()
                    scales[r, c] = values.abs().max() / 448
                    codes[block] = (values / scales[r, c]).to(torch.float8_e4m3fn)
            tensors[name], tensors[f"{name}_scale_inv"] = codes, scales
        save_file(tensors, file, metadata={"format": "pt"})
    index_file = folder / "model.safetensors.index.json"
    if index_file.exists():
        index = json.loads(index_file.read_text())
        for file in folder.glob("*.safetensors"):
            with safe_open(file, "pt") as opened:
                index["weight_map"] |= dict.fromkeys(opened.keys(), file.name)
        index_file.write_text(json.dumps(index))
    return folder


@pytest.fixture(scope="module")
def fp8(tmp_path_factory):
    return quantise(save(make_oracle(WIDE), tmp_path_factory.mktemp("fp8"), BF16))


def dequantised(folder, name):
    """A matrix, each code times the scale of its block, one block at a time."""
    file = folder / json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"][name]
    with safe_open(file, "pt") as opened:
        values, scales = opened.get_tensor(name).float(), opened.get_tensor(f"{name}_scale_inv")
    for r in range(scales.shape[0]):
        for c in range(scales.shape[1]):
            values[128 * r : 128 * r + 128, 128 * c : 128 * c + 128] *= scales[r, c]
    return values


def test_fp8_against_plain_loops(fp8):
    _, ours = checkpoint.load(fp8, FP32)
    prefix, own = "model.layers.1.", ours.layers[1]
    assert torch.equal(own.attention.wq_a, dequantised(fp8, f"{prefix}self_attn.q_a_proj.weight").T)
    assert torch.equal(own.attention.o_proj, dequantised(fp8, f"{prefix}self_attn.o_proj.weight").T)
    assert torch.equal(own.indexer.wk, dequantised(fp8, f"{prefix}self_attn.indexer.wk.weight"))
    assert isinstance(own.mlp, ExpertWeights)
    assert torch.equal(own.mlp.experts[3].gate, dequantised(fp8, f"{prefix}mlp.experts.3.gate_proj.weight"))
    gate = find(ours, "layers.0.mlp.gate")
    assert gate.shape == (300, 200)
    assert torch.equal(gate, dequantised(fp8, "model.layers.0.mlp.gate_proj.weight"))


@pytest.mark.parametrize("ranks", [2, 4])
def test_parts_of_fp8(fp8, ranks):
    """Rows and columns that begin within a block take its scale."""
    _, whole = checkpoint.load(fp8, FP32)
    parts = [checkpoint.load(fp8, FP32, rank, ranks)[1] for rank in range(ranks)]
    for packed in packed_tensors(WIDE):
        if packed.split is not None:
            joined = torch.cat([find(part, packed.name) for part in parts], packed.split)
            assert torch.equal(joined, find(whole, packed.name)), packed.name


def test_dequantise_by_hand():
    codes = torch.ones(3, 4).to(torch.float8_e4m3fn)
    made = dequantise(codes, torch.tensor([[1.0, 2.0], [4.0, 8.0]]), (126, 127))
    assert made.tolist() == [[1, 2, 2, 2], [1, 2, 2, 2], [4, 8, 8, 8]]


@pytest.mark.parametrize("dtype", [BF16, FP32])
@pytest.mark.parametrize("source", ["saved", "fp8"])
def test_converted_is_the_same(source, dtype, tmp_path, request, monkeypatch):
    """Of one rank and of each of several, from several files."""
    monkeypatch.setattr(checkpoint, "PART_BYTES", 200_000)
    published = request.getfixturevalue(source)
    checkpoint.convert_hub(published, tmp_path / "out", dtype)
    assert len(list((tmp_path / "out").glob("*.safetensors"))) > 4
    for rank, ranks in ((0, 1), (0, 2), (3, 4)):
        config, expected = checkpoint.load(published, dtype, rank, ranks)
        converted_config, found = checkpoint.load(tmp_path / "out", dtype, rank, ranks)
        assert converted_config == config
        assert all_equal(config, found, expected)


def edit(folder, change):
    """Rewrites the file of a tensor after a change to all its tensors; the index follows."""
    index_file = folder / "model.safetensors.index.json"
    index = json.loads(index_file.read_text())
    for file in sorted(set(index["weight_map"].values())):
        with safe_open(folder / file, "pt") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        index["weight_map"] = {k: v for k, v in index["weight_map"].items() if v != file}
        change(tensors)
        index["weight_map"] |= dict.fromkeys(tensors, file)
        save_file(tensors, folder / file, metadata={"format": "pt"})
    index_file.write_text(json.dumps(index))


ABSENT = "model.layers.1.self_attn.indexer.wk.weight"
EXPERT = "model.layers.2.mlp.experts.7.down_proj.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(ABSENT, None), f"expected: {ABSENT}; found: "),
        (
            lambda t: t.update({EXPERT: t[EXPERT][:, :40].contiguous()}) if EXPERT in t else None,
            f"{EXPERT}: expected: shape [96, 48]; found: [96, 40]",
        ),
        (
            lambda t: t.update({EXPERT: t[EXPERT].to(torch.float8_e4m3fn)}) if EXPERT in t else None,
            f"{EXPERT}: expected: torch.bfloat16 or torch.float32 or torch.float16; found: torch.float8_e4m3fn",
        ),
        (
            lambda t: t.update({EXPERT: torch.full_like(t[EXPERT], torch.nan)}) if EXPERT in t else None,
            f"{EXPERT}: expected: finite values; found: NaN or infinite ones",
        ),
        (
            lambda t: t.update({f"{EXPERT}_scale_inv": torch.ones(1, 1)}) if EXPERT in t else None,
            f"{EXPERT}: expected: torch.float8_e4m3fn; found: torch.bfloat16",
        ),
        (
            lambda t: t.update({"stray": torch.ones(1)}) if EXPERT in t else None,
            "expected: only this model's tensors; found: stray",
        ),
        (lambda t: t.update({"stray": torch.ones(1)}), "stray: expected: in one file; found: in model-00001-of"),
    ],
)
def test_refused(folder, change, message, tmp_path):
    edit(folder, change)
    for work in (
        lambda: checkpoint.load(folder, BF16),
        lambda: checkpoint.convert_hub(folder, tmp_path / "out", BF16),
    ):
        with pytest.raises(CheckpointError) as refusal:
            work()
        assert message in str(refusal.value)
    assert not (tmp_path / "out").exists()


def change_config(folder, **values):
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def test_layers_behind_the_last_are_left_alone(folder):
    """The published checkpoint has a layer that predicts a further token: it has an eh_proj beside a layer's own."""
    change_config(folder, num_hidden_layers=2, mlp_layer_types=None)
    with pytest.raises(CheckpointError, match=r"expected: only this model's tensors; found: model\.layers\.2\."):
        checkpoint.load(folder, BF16)
    edit(folder, lambda t: t.update({"model.layers.2.eh_proj.weight": torch.ones(2, 2)}) if EXPERT in t else None)
    config, weights = checkpoint.load(folder, BF16)
    assert config.num_hidden_layers == len(weights.layers) == 2


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_hidden_layers": 2**62, "mlp_layer_types": None}, "expected: model.layers.3.input_layernorm.weight; "),
        ({"num_hidden_layers": 2**62}, "mlp_layer_types is ['dense', 'sparse', 'sparse']; accepted: dense for"),
        ({"n_routed_experts": 2**40}, "mlp.gate.weight: expected: shape [1099511627776, 96]; found: [16, 96]"),
    ],
)
def test_more_than_could_be_listed(folder, values, message):
    """Refused in a moment and in one short line, by the first tensor that is not there."""
    change_config(folder, **values)
    with pytest.raises(ValueError, match=re.escape(message)) as refusal:
        checkpoint.load(folder, BF16)
    assert len(str(refusal.value)) < 400


def test_cut_short(folder, tmp_path):
    file = sorted(folder.glob("*.safetensors"))[0]
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(CheckpointError, match=rf"{file.name}: .* ends at byte .*; expected: .* bytes; found: "):
        checkpoint.load(folder, BF16)
    with pytest.raises(CheckpointError, match=r"expected: a folder with config\.json; found: none"):
        checkpoint.load(tmp_path / "nothing", BF16)


def test_converted_for_another_type(saved, tmp_path):
    checkpoint.convert_hub(saved, tmp_path / "out", BF16)
    with pytest.raises(CheckpointError, match=r"dtype: expected: float32; found: bfloat16"):
        checkpoint.load(tmp_path / "out", FP32)
    with pytest.raises(ValueError, match="num_attention_heads is 4; accepted over 8 ranks"):
        checkpoint.load(tmp_path / "out", BF16, 0, 8)
    manifest = tmp_path / "out" / "manifest.json"
    whole = manifest.read_text()
    manifest.write_text(whole.replace('"num_hidden_layers": 3', '"num_hidden_layers": 2'))
    with pytest.raises(CheckpointError, match=r"expected: only this model's tensors; found: layers\.2\."):
        checkpoint.load(tmp_path / "out", BF16)
    manifest.write_text(whole.replace('"num_hidden_layers": 3', f'"num_hidden_layers": {2**62}'))
    with pytest.raises(CheckpointError, match=r"expected: layers\.3\.attention\.input_norm; found: "):
        checkpoint.load(tmp_path / "out", BF16)


@pytest.mark.parametrize("converted", [False, True])
def test_no_such_rank_or_type(saved, tmp_path, converted):
    folder = saved
    if converted:
        folder = tmp_path / "out"
        checkpoint.convert_hub(saved, folder, BF16)
    for arguments, error, words in (
        ((torch.float16,), TypeError, "dtype is torch.float16; accepted: bfloat16, float32"),
        ((BF16, 2, 2), ValueError, "rank is 2; accepted of 2 ranks: 0 to 1"),
        ((BF16, -1, 2), ValueError, "rank must be at least 0, got -1"),
        ((BF16, 0, 0), ValueError, "ranks must be at least 1, got 0"),
        ((BF16, 0.5, 2), TypeError, "rank must be an integer, got 0.5"),
    ):
        with pytest.raises(error, match=words):
            checkpoint.load(folder, *arguments)

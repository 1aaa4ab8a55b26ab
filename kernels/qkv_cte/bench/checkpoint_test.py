"""Reading a layer, and refusing what is none."""

import pytest
import torch
from safetensors.torch import save_file

from kernels.qkv_cte.bench import checkpoint, small_layer
from kernels.qkv_cte.bench.checkpoint import CheckpointError, read_layer
from kernels.qkv_cte.bench.small_layer import HIDDEN


@pytest.fixture
def path(tmp_path):
    return tmp_path / "layer.safetensors"


def refusal(path, layer=0):
    with pytest.raises(CheckpointError) as caught:
        read_layer(path, layer)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_tensor_comes_from_its_name(path):
    stored = small_layer.tensors(layer=3)
    save_file(stored, path)
    layer = read_layer(path, 3)
    assert layer.hidden == HIDDEN
    assert layer.hidden_states is None
    assert layer.encoder_hidden_states is None
    for name, attention in (("attn1", layer.self_attention), ("attn2", layer.cross_attention)):
        for linear in ("to_q", "to_k", "to_v"):
            assert torch.equal(getattr(attention, linear).weight, stored[f"blocks.3.{name}.{linear}.weight"])
            assert torch.equal(getattr(attention, linear).bias, stored[f"blocks.3.{name}.{linear}.bias"])
        for norm in ("norm_q", "norm_k"):
            assert torch.equal(getattr(attention, norm), stored[f"blocks.3.{name}.{norm}.weight"])


def test_stored_inputs_are_read(path):
    states, text = torch.randn(2, 6, HIDDEN), torch.randn(1, 4, HIDDEN)
    save_file(small_layer.tensors() | {"hidden_states": states, "encoder_hidden_states": text}, path)
    layer = read_layer(path, 0)
    assert torch.equal(layer.hidden_states, states)
    assert torch.equal(layer.encoder_hidden_states, text)


def test_only_what_is_needed_is_read(path, monkeypatch):
    save_file(small_layer.tensors() | {"blocks.0.ffn.net.0.proj.weight": torch.zeros(8, 8)}, path)
    read: list[str] = []

    def spy(*args, **kwargs):
        opened = original(*args, **kwargs)

        class Spy:
            def __enter__(self):
                opened.__enter__()
                return self

            def __exit__(self, *error):
                return opened.__exit__(*error)

            def __getattr__(self, name):
                return getattr(opened, name)

            def get_tensor(self, name):
                read.append(name)
                return opened.get_tensor(name)

        return Spy()

    original = checkpoint.safe_open
    monkeypatch.setattr(checkpoint, "safe_open", spy)
    read_layer(path, 0)
    assert sorted(read) == sorted(small_layer.tensors())


@pytest.mark.parametrize("name", sorted(small_layer.tensors()))
def test_any_missing_tensor_is_named(path, name):
    stored = small_layer.tensors()
    del stored[name]
    save_file(stored, path)
    assert f"{name} is missing" in refusal(path)


@pytest.mark.parametrize("name", sorted(small_layer.tensors()))
def test_any_wrong_shape_is_named(path, name):
    stored = small_layer.tensors()
    stored[name] = stored[name][:-1].clone()
    save_file(stored, path)
    message = refusal(path)
    assert f"{name} has shape {list(stored[name].shape)}; expected: [" in message


def test_layers_in_the_file_are_named(path):
    save_file(
        {f"blocks.{layer}.attn1.norm_q.weight": torch.ones(4) for layer in (0, 1, 2, 7, 10, 11)},
        path,
    )
    assert "blocks.5.attn1.to_q.weight is missing; layers in the file: 0-2, 7, 10-11" in refusal(path, 5)


def test_a_file_without_layers_says_so(path):
    save_file({"proj_out.weight": torch.ones(4)}, path)
    assert refusal(path).endswith("layers in the file: none")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_no_numbers_are_refused(path, value):
    stored = small_layer.tensors()
    stored["blocks.0.attn2.to_k.bias"][7] = value
    save_file(stored, path)
    assert "blocks.0.attn2.to_k.bias has NaN or infinite values" in refusal(path)


def test_a_dtype_that_is_not_quantised_from_is_refused(path):
    stored = small_layer.tensors()
    stored["blocks.0.attn1.to_v.weight"] = stored["blocks.0.attn1.to_v.weight"].to(torch.float8_e4m3fn)
    save_file(stored, path)
    assert "blocks.0.attn1.to_v.weight has dtype F8_E4M3; expected: one of F32, BF16, F16" in refusal(path)


@pytest.mark.parametrize("shape", [(4, HIDDEN), (1, 4, HIDDEN - 4), (1, 0, HIDDEN)])
def test_an_input_of_another_shape_is_refused(path, shape):
    save_file(small_layer.tensors() | {"hidden_states": torch.zeros(shape)}, path)
    assert f"hidden_states has shape {list(shape)}; expected: [B, S, {HIDDEN}]" in refusal(path)


def test_a_truncated_file_names_the_first_tensor_it_lacks(path):
    save_file({"a.first": torch.zeros(64), "b.second": torch.zeros(64), "c.third": torch.zeros(64)}, path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-300])
    message = refusal(path)
    assert f"b.second ends at byte {len(whole) - 256:,}" in message
    assert f"the file has {len(whole) - 300:,} of {len(whole):,}" in message


JSON_LIST, NO_OFFSETS = b"\x02\0\0\0\0\0\0\0[]", b'\x08\0\0\0\0\0\0\0{"a":{}}'


@pytest.mark.parametrize("content", [b"", b"hi", b"\xff" * 100, JSON_LIST, NO_OFFSETS])
def test_other_files_are_refused(path, content):
    path.write_bytes(content)
    assert "not a safetensors file" in refusal(path)


def test_no_file_and_a_folder_are_refused(tmp_path):
    assert "no such file" in refusal(tmp_path / "absent")
    assert "no such file" in refusal(tmp_path)

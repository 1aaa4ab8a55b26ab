"""A made checkpoint has the names and shapes that the bench reads, and projects like diffusers' own attention."""

import pytest
import torch
from diffusers.models.transformers.transformer_wan import WanTransformerBlock
from safetensors import safe_open

from kernels.qkv_cte.bench import make_checkpoint
from kernels.qkv_cte.bench.checkpoint import CROSS_INPUT, SELF_INPUT, read_layer

SMALL = ["--hidden", "256", "--heads", "2", "--ffn", "64", "--tokens", "6", "--text-tokens", "10"]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("made") / "made.safetensors"
    assert make_checkpoint.main([str(path), "--layer", "7", *SMALL]) == 0
    return path


def test_the_layer_is_that_of_diffusers(path):
    """diffusers loads the block strictly by name, and its linears compute what the tensors read here say."""
    block = WanTransformerBlock(256, 64, 2, cross_attn_norm=True)
    with safe_open(path, framework="pt") as stored:
        state = {name.removeprefix("blocks.7."): stored.get_tensor(name) for name in stored.keys() if "blocks." in name}  # noqa: SIM118
    block.load_state_dict(state)
    layer = read_layer(path, 7)
    for attention, read, states in (
        (block.attn1, layer.self_attention, layer.hidden_states),
        (block.attn2, layer.cross_attention, layer.encoder_hidden_states),
    ):
        assert states is not None
        for name in ("to_q", "to_k", "to_v"):
            linear = getattr(read, name)
            ours = torch.nn.functional.linear(states.float(), linear.weight.float(), linear.bias.float())
            assert torch.equal(getattr(attention, name)(states.float()), ours)


def test_inputs_lie_beside_it(path):
    layer = read_layer(path, 7)
    inputs = {SELF_INPUT: layer.hidden_states, CROSS_INPUT: layer.encoder_hidden_states}
    sizes = {name: tuple(values.shape) for name, values in inputs.items() if values is not None}
    assert sizes == {"hidden_states": (1, 6, 256), "encoder_hidden_states": (1, 10, 256)}


def test_its_mode_is_that_of_any_new_file(path):
    other = path.with_name("other")
    other.touch()
    assert path.stat().st_mode == other.stat().st_mode


def test_seeds_repeat_and_differ(tmp_path):
    contents = []
    for seed in ("1", "1", "2"):
        assert make_checkpoint.main([str(tmp_path / "made"), "--seed", seed, *SMALL]) == 0
        contents.append((tmp_path / "made").read_bytes())
    assert contents[0] == contents[1]
    assert contents[0] != contents[2]
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hidden", "100", "--heads", "3"], "--hidden is 100; accepted: a multiple of --heads 3"),
        (["--hidden", "0"], "'0'; accepted: an integer from 1"),
        (["--hidden", "130", "--heads", "2"], "--hidden 130 in --heads 2 are heads of 65; accepted: an even number"),
        (["--seed", "9" * 30], "; accepted: an integer from 0 to 2147483647"),
        (["--tokens", "32769"], "'32769'; accepted: an integer from 1 to 32768"),
        (["--hidden", "8194"], "'8194'; accepted: an integer from 1 to 8192"),
        (["--layer", "one"], "'one'; accepted: an integer from 0"),
    ],
)
def test_refusals(capsys, tmp_path, arguments, message):
    with pytest.raises(SystemExit) as caught:
        make_checkpoint.main([str(tmp_path / "made"), *arguments])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []

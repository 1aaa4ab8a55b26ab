"""The DiT against diffusers' own, every intermediate, in both precisions."""

import dataclasses
import functools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from models.checkpoints import CheckpointError
from models.wan22 import block, embeddings
from models.wan22.compare import compare
from models.wan22.config import HEAD_DIM
from models.wan22.conversion import convert_checkpoint, open_wan
from models.wan22.evaluation import evaluate
from models.wan22.launching import launch
from models.wan22.model import WanDiT
from models.wan22.oracle import Recorder, random_inputs, run_oracle
from models.wan22.projecting import fused_call, plain_call
from models.wan22.projections import CROSS_K, CROSS_V, FFN_DOWN, SELF_QKV, Precision, all_bf16
from models.wan22.random_checkpoint import write_checkpoint

EPS = 0.25
"""Beside tokens whose variance is about 1: a norm that took another one would show."""

CONFIGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "t2v": ({"outliers": True}, {"batch": 2}),
    "i2v": ({"in_channels": 36, "heads": 3, "eps": EPS}, {"channels": 36, "size": (1, 10, 14), "text_tokens": 7}),
    "image": (
        {"in_channels": 36, "image_dim": 64, "added_kv_proj_dim": 256, "layers": 1, "eps": EPS},
        {"channels": 36, "image_dim": 64},
    ),
}

AS_EXACT = 1.05
"""Two roundings of the same size, which are random, differ in RMS by a few per cent of it."""

NEARLY_ALL_EQUAL = 2.0**-12
"""Relative RMS where few of bf16 numbers are the neighbours of what is expected; were all, it would be 2**-9."""

BF16_COSINE, PROJECTION_COSINE, BLOCK_COSINE = 0.99999, 0.999, 0.998


@functools.cache
def checkpoints(tmp):
    """Per config: the published folder, the inputs, the oracle's step."""
    made = {}
    for name, (sizes, inputs) in CONFIGS.items():
        folder = Path(tmp) / name / "transformer"
        write_checkpoint(folder, **sizes)
        given = random_inputs(**inputs)
        made[name] = folder, given, run_oracle(folder, given)
    return made


@pytest.fixture(scope="session")
def oracles(tmp_path_factory):
    return checkpoints(tmp_path_factory.mktemp("published"))


def converted(folder, bf16=()):
    out = folder.with_name("converted_" + "_".join(("row_mx", *bf16)))
    if not out.exists():
        convert_checkpoint(folder, out, tuple(bf16))
    return out


def load_bf16(folder):
    return converted(folder, list(all_bf16(open_wan(converted(folder)).config)))


@pytest.mark.parametrize("name", CONFIGS)
def test_bf16(oracles, name):
    """As near to diffusers in bf16 as asked, and as near to diffusers in fp32 as diffusers in bf16 is.

    After a few layers two ways to round differ by more than either does in one: the norm and RoPE here round once,
    diffusers' twice.
    """
    folder, inputs, expected = oracles[name]
    errors = evaluate(load_bf16(folder), inputs, expected)
    assert set(errors.in_chain) == set(expected)
    # Nothing is rounded before this but once, as in diffusers: the modulation above all is fp32.
    assert errors.in_chain["blocks.0.attn1.input"].relative_rms < NEARLY_ALL_EQUAL
    for part, error in (*errors.alone.items(), *errors.blocks.items(), ("output", errors.in_chain["output"])):
        assert error.cosine >= BF16_COSINE, part
    exact = run_oracle(folder, inputs, torch.float32)
    for part, error in evaluate(load_bf16(folder), inputs, exact).in_chain.items():
        assert error.relative_rms <= AS_EXACT * compare(expected[part], exact[part]).relative_rms, part


@pytest.mark.parametrize("name", CONFIGS)
def test_row_mx(oracles, name):
    folder, inputs, expected = oracles[name]
    errors = evaluate(converted(folder), inputs, expected)
    assert set(errors.in_chain) == set(expected)
    for part, error in errors.alone.items():
        # Codes are used: an exact result would mean that nothing was quantised.
        assert PROJECTION_COSINE <= error.cosine < BF16_COSINE, part
    for part, error in (*errors.blocks.items(), *errors.updates.items()):
        assert error.cosine >= BLOCK_COSINE, part
    assert errors.in_chain["output"].cosine >= BLOCK_COSINE


def test_precision_of_one_projection(oracles):
    """Exactly the projections named are bf16."""
    folder, inputs, expected = oracles["t2v"]
    mixed = converted(folder, [SELF_QKV, FFN_DOWN])
    precisions = open_wan(mixed).precisions
    assert {name for name, precision in precisions.items() if precision is Precision.BF16} == {SELF_QKV, FFN_DOWN}
    alone = evaluate(mixed, inputs, expected).alone
    for part, error in alone.items():
        exact = part.endswith((".attn1.query", ".attn1.key", ".attn1.value", ".ffn"))
        assert (error.cosine >= BF16_COSINE) == exact, part


def of_normal(x):
    """x times the share of the normal distribution below it, its tanh approximation, in fp64."""
    x = x.double()
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def exact_of_normal(x):
    """The same without approximation."""
    x = x.double()
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def normalised(x):
    """Layer norm of a vector, with the epsilon of the image's embedding."""
    return (x - x.mean()) / (x.var(correction=0) + 1e-5).sqrt()


def test_which_gelu(oracles):
    """Below -2 the two GELUs differ by more than bf16 rounds: tanh's in the MLP and for text, exact for images."""
    folder, inputs, _ = oracles["t2v"]
    recorder = Recorder(math.prod(WanDiT.load(converted(folder)).config.grid(tuple(inputs.latents.shape))))
    model = WanDiT.load(converted(folder))
    model(inputs.latents, inputs.timestep, model.encode(inputs.text), recorder)
    raised, hidden = (recorder.seen[f"blocks.0.ffn.net.0{part}"] for part in (".proj", ""))
    assert ((raised < -2) & (raised > -3.5)).any()
    torch.testing.assert_close(hidden.double(), of_normal(raised), rtol=2**-7, atol=1e-5)
    x = torch.linspace(-3.5, 3, 64).to(torch.bfloat16)
    unit, zeros = torch.eye(64, dtype=torch.bfloat16), torch.zeros(64, dtype=torch.bfloat16)
    text = "condition_embedder.text_embedder"
    outer = {f"{text}.linear_1.weight": unit, f"{text}.linear_1.bias": x}
    outer |= {f"{text}.linear_2.weight": unit, f"{text}.linear_2.bias": zeros}
    made = embeddings.embed_text(outer, zeros[None, None])[0, 0]
    torch.testing.assert_close(made.double(), of_normal(x), rtol=2**-7, atol=1e-5)
    image = "condition_embedder.image_embedder"
    outer = {f"{image}.norm1.weight": zeros.float(), f"{image}.norm1.bias": zeros.float()}
    outer |= {f"{image}.ff.net.0.proj.weight": unit}
    outer |= {f"{image}.ff.net.2.weight": unit, f"{image}.ff.net.2.bias": zeros}
    outer |= {f"{image}.norm2.weight": torch.ones(64), f"{image}.norm2.bias": zeros.float()}
    low = torch.linspace(-4, -2, 64).to(torch.bfloat16)
    made = embeddings.embed_image(outer | {f"{image}.ff.net.0.proj.bias": low}, zeros[None, None])[0, 0].double()
    assert (made - normalised(exact_of_normal(low))).abs().mean() < 0.004
    assert (made - normalised(of_normal(low))).abs().mean() > 0.007


def test_gated_residuals_are_rounded_once():
    """In the middle between two bf16 numbers a product that is rounded first, up or down, decides which it becomes."""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(1, 64, 256, generator=generator).bfloat16() for _ in range(2))
    gate = torch.randn(1, 256, generator=generator)
    exact = x.double() + y.double() * gate.double()[:, None]
    (found,) = block.gated([x], [y], gate)
    assert found.dtype == torch.bfloat16
    assert float((found != exact.bfloat16()).float().mean()) < 1e-4
    twice = x + (y * gate[:, None]).bfloat16()
    assert float((twice != exact.bfloat16()).float().mean()) > 0.05


def step(folder, inputs):
    model = WanDiT.load(folder)
    return model(inputs.latents, inputs.timestep, model.encode(inputs.text, inputs.image))


def test_batch_of_two_is_two_alone(oracles):
    folder, inputs, _ = oracles["t2v"]
    both = step(converted(folder), inputs)
    for index in range(2):
        one = dataclasses.replace(
            inputs,
            latents=inputs.latents[index : index + 1],
            timestep=inputs.timestep[index : index + 1],
            text=inputs.text[index : index + 1],
        )
        assert compare(step(converted(folder), one)[0], both[index]).cosine >= BF16_COSINE


def test_text_keys_are_computed_once(oracles):
    """A step does not touch the projections of K and V of text."""
    folder, inputs, _ = oracles["t2v"]
    model = WanDiT.load(converted(folder))
    prompt = model.encode(inputs.text)
    first = model(inputs.latents, inputs.timestep, prompt)
    for one in model.blocks:
        kept = {name: p for name, p in one.weights.projections.items() if name not in (CROSS_K, CROSS_V)}
        one.weights = dataclasses.replace(one.weights, projections=kept)
    assert torch.equal(model(inputs.latents, inputs.timestep, prompt), first)


def changed(folder, tmp_path, change):
    """A copy of a published checkpoint with some tensors changed."""
    out = tmp_path / "transformer"
    out.mkdir()
    for file in folder.iterdir():
        if file.suffix == ".safetensors":
            tensors = load_file(file)
            change(tensors)
            save_file(tensors, out / file.name)
        else:
            (out / file.name).write_bytes(file.read_bytes())
    return out


def test_w1_heads_of_scale_2_to_the_h(oracles, tmp_path):
    """Q and K are normalised over all heads, not per head; V does not depend on norms and RoPE."""
    folder, inputs, _ = oracles["i2v"]

    def scale_heads(tensors):
        for name, tensor in tensors.items():
            if name.startswith(("blocks.0.attn1.to_q", "blocks.0.attn1.to_k")):
                for head in range(3):
                    tensor[128 * head : 128 * (head + 1)] *= 2.0**head

    scaled = changed(folder, tmp_path, scale_heads)
    expected = run_oracle(scaled, inputs)
    recorder = Recorder(35)
    model = WanDiT.load(converted(scaled))
    model(inputs.latents, inputs.timestep, model.encode(inputs.text), recorder)
    for which in ("query", "key"):
        name = f"blocks.0.attn1.{which}"
        for head in range(3):
            assert compare(recorder.seen[name][:, head], expected[name][:, head]).cosine >= PROJECTION_COSINE
        rms = recorder.seen[name].float().square().mean((0, 2, 3)).sqrt()
        assert (rms[1:] / rms[:-1]).allclose(torch.tensor(2.0), rtol=0.15)
    before = Recorder(35)
    unscaled = WanDiT.load(converted(folder))
    unscaled(inputs.latents, inputs.timestep, unscaled.encode(inputs.text), before)
    assert torch.equal(before.seen["blocks.0.attn1.value"], recorder.seen["blocks.0.attn1.value"])
    share, places = model.blocks[0].weights.shares[0], model.places((1, 5, 7))
    rows = share.qkv.rows(model.share(recorder.seen["patch_embedding"])[0], 2)
    with_norm = launch(fused_call(share.qkv, rows, HEAD_DIM, share.gammas, places.caches[0], EPS, None), 2)
    query, _, value = with_norm.chunk(3, -1)
    without_query, _, without_value = launch(plain_call(share.qkv, rows), 2).chunk(3, -1)
    assert torch.equal(value, without_value)
    assert not torch.equal(query, without_query)


def test_bad_arguments(oracles):
    folder, inputs, _ = oracles["t2v"]
    model = WanDiT.load(converted(folder))
    prompt = model.encode(inputs.text)
    latents, timestep = inputs.latents, inputs.timestep
    for refused, words in (
        (lambda: model(latents[:, :15], timestep, prompt), r"latents is \[2, 15.*accepted: a tensor \[\*, 16"),
        (lambda: model(latents[..., :9], timestep, prompt), r"in whole patches of \(1, 2, 2\)"),
        (lambda: model(latents[0], timestep, prompt), "latents is"),
        (lambda: model(latents * float("nan"), timestep, prompt), "latents has NaN"),
        (lambda: model(latents.to("meta"), timestep, prompt), "latents is torch.strided on meta; accepted: .* on cpu"),
        (lambda: model(latents.to_sparse(), timestep, prompt), "latents is torch.sparse_coo on cpu; accepted"),
        (lambda: model(latents, timestep[:1], prompt), r"timestep is \[1\].*accepted: a tensor \[2\]"),
        (
            lambda: model(latents, timestep * math.nan, prompt),
            r"timestep is \[nan, nan\]; accepted: from 0 to 1000",
        ),
        (lambda: model(latents, -timestep, prompt), r"timestep is \[-900.0, -300.0\]; accepted: from 0 to 1000"),
        (lambda: model(latents, timestep * 2, prompt), r"timestep is \[1800.0, 600.0\]; accepted"),
        (lambda: model(latents, timestep + 0j, prompt), "timestep is .*; accepted: from 0 to 1000"),
        (lambda: model(latents, timestep.to("meta"), prompt), "timestep is torch.strided on meta; accepted"),
        (lambda: model(latents[:1], timestep[:1], prompt), "prompt is of batch 2; accepted: 1"),
        (lambda: model(latents, timestep, dataclasses.replace(prompt, expert="transformer_2")), "prompt is of transf"),
        (lambda: model(latents, timestep, dataclasses.replace(prompt, keys=())), "prompt is of transformer, 0 blocks"),
        (lambda: model.encode(inputs.text[..., :63]), r"text is \[2, 16, 63\].*accepted: a tensor \[\*, \*, 64\]"),
        (lambda: model.encode(inputs.text, inputs.text), "image is given; accepted: None"),
        (lambda: WanDiT.load(converted(folder), "transformer_2"), "expert is 'transformer_2'; accepted: transformer "),
    ):
        with pytest.raises(ValueError, match=words):
            refused()
    for refused, words in (
        (lambda: model(None, timestep, prompt), "latents is a NoneType"),
        (lambda: model(latents, timestep, "prompt"), "prompt is a str"),
        (lambda: model.encode(inputs.text.to(torch.float64)), "text is .*float64"),
    ):
        with pytest.raises(TypeError, match=words):
            refused()


def test_text_beside_an_image_has_512_tokens(oracles):
    folder, inputs, _ = oracles["image"]
    model = WanDiT.load(converted(folder))
    with pytest.raises(ValueError, match=r"text is \[1, 511, 64\].*accepted: a tensor \[\*, 512, 64\]"):
        model.encode(inputs.text[:, :511], inputs.image)
    with pytest.raises(TypeError, match="image is a NoneType"):
        model.encode(inputs.text)


def test_bad_weight_scales_are_refused_when_loaded(oracles, tmp_path):
    """n7: a scale that is not finite and positive, with the manifest's size still right."""
    folder, _, _ = oracles["i2v"]
    out = tmp_path / "out"
    convert_checkpoint(folder, out)
    file = out / "transformer_block_01_ffn.safetensors"
    tensors = load_file(file)
    tensors["transformer.blocks.1.ffn.net.2.weight_scales"][0, 5] = 0
    save_file(tensors, file)
    with pytest.raises(CheckpointError, match=r"blocks\.1\.ffn\.net\.2\.weight_scales .* got 0\.0 at index \[0, 5\]"):
        WanDiT.load(out)

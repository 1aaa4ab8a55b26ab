"""Angles and softmax scale against transformers' YaRN."""

import dataclasses

import pytest
import torch
from transformers import DeepseekV32Config
from transformers.models.deepseek_v32.modeling_deepseek_v32 import DeepseekV32RotaryEmbedding, yarn_apply_mscale

from models.deepseek_v32 import rope
from models.deepseek_v32.config import PUBLISHED
from models.deepseek_v32.tiny import TINY

YARN = PUBLISHED.yarn
assert YARN is not None
CASES = {
    "published": PUBLISHED,
    "tiny": TINY,
    "mscale_not_all_dim": dataclasses.replace(PUBLISHED, yarn=dataclasses.replace(YARN, mscale=0.7)),
    "factor_1": dataclasses.replace(PUBLISHED, yarn=dataclasses.replace(YARN, factor=1.0)),
    "steep": dataclasses.replace(PUBLISHED, yarn=dataclasses.replace(YARN, beta_fast=1.0)),
    "factor_below_1": dataclasses.replace(PUBLISHED, yarn=dataclasses.replace(YARN, factor=0.5, mscale=0.7)),
    "ramp_to_the_end": dataclasses.replace(
        PUBLISHED, yarn=dataclasses.replace(YARN, original_max_position_embeddings=131_072)
    ),
    "ramp_without_width": dataclasses.replace(
        PUBLISHED, yarn=dataclasses.replace(YARN, original_max_position_embeddings=6)
    ),
    "plain": dataclasses.replace(PUBLISHED, yarn=None),
}


@pytest.mark.parametrize("config", CASES.values(), ids=CASES.keys())
def test_as_transformers(config):
    """Angles to the last bits of fp32, whose product with a position of 100,000 is what the model has."""
    parameters = {"rope_type": "default", "rope_theta": config.rope_theta}
    if config.yarn is not None:
        parameters |= {"rope_type": "yarn", **dataclasses.asdict(config.yarn)}
    theirs = DeepseekV32Config(
        qk_rope_head_dim=config.qk_rope_head_dim,
        max_position_embeddings=config.max_position_embeddings,
        rope_parameters=parameters,
    )
    embedding = DeepseekV32RotaryEmbedding(theirs)
    torch.testing.assert_close(rope.frequencies(config), embedding.inv_freq, rtol=3e-7, atol=0)
    positions = torch.tensor([0, 1, 63, 64, 4095, 4096, 20_000])
    for ours, expected in zip(rope.cos_sin(config, positions), embedding(torch.zeros(1), positions[None]), strict=True):
        half = expected[0, :, : config.qk_rope_head_dim // 2]
        torch.testing.assert_close(ours, half, rtol=0, atol=2e-7 * 20_000)
    assert rope.softmax_scale(config) == pytest.approx(yarn_apply_mscale(parameters, config.query_head_dim**-0.5))


def test_m7_published_scale():
    assert rope.softmax_scale(PUBLISHED) == pytest.approx(0.135234, abs=5e-7)

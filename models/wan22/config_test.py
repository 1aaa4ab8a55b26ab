"""Published configurations, and those that cannot be served."""

import dataclasses
import json
from typing import Any, cast

import pytest
from diffusers import WanTransformer3DModel

from models.checkpoints import CheckpointError
from models.wan22.config import I2V_A14B, T2V_A14B, WanConfig, from_json, read_config
from models.wan22.projections import choose_precisions

PUBLISHED = {
    "_class_name": "WanTransformer3DModel",
    "_diffusers_version": "0.35.0.dev0",
    "added_kv_proj_dim": None,
    "attention_head_dim": 128,
    "cross_attn_norm": True,
    "eps": 1e-06,
    "ffn_dim": 13824,
    "freq_dim": 256,
    "image_dim": None,
    "in_channels": 16,
    "num_attention_heads": 40,
    "num_layers": 40,
    "out_channels": 16,
    "patch_size": [1, 2, 2],
    "pos_embed_seq_len": None,
    "qk_norm": "rms_norm_across_heads",
    "rope_max_seq_len": 1024,
    "text_dim": 4096,
}


def test_published():
    assert from_json(PUBLISHED) == T2V_A14B
    assert from_json({**PUBLISHED, "in_channels": 36}) == I2V_A14B
    assert T2V_A14B.hidden == 5120
    assert from_json(json.loads(json.dumps(T2V_A14B.to_json()))) == T2V_A14B


def test_fields_are_those_of_diffusers(tmp_path):
    model = WanTransformer3DModel(num_layers=1, num_attention_heads=1, ffn_dim=128, text_dim=8)
    model.save_config(tmp_path)
    config = read_config(tmp_path)
    assert config == WanConfig(num_layers=1, num_attention_heads=1, ffn_dim=128, text_dim=8)
    assert set(config.to_json()) == {name for name in model.config if not name.startswith("_")}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_attention_heads": 0}, "num_attention_heads must be at least 1"),
        ({"num_layers": 2.5}, "num_layers must be an integer"),
        ({"attention_head_dim": 64}, "attention_head_dim is 64; accepted: 128"),
        ({"ffn_dim": 13825}, "ffn_dim is 13825; accepted: a multiple of 128"),
        ({"freq_dim": 255}, "freq_dim is 255; accepted: an even"),
        ({"qk_norm": "rms_norm"}, "qk_norm is 'rms_norm'; accepted: 'rms_norm_across_heads'"),
        ({"cross_attn_norm": False}, "cross_attn_norm is False; accepted: True"),
        ({"pos_embed_seq_len": 514}, "pos_embed_seq_len is 514; accepted: None"),
        ({"eps": 0}, "eps is 0.0; accepted: a number above 0"),
        ({"eps": "small"}, "eps is 'small'"),
        ({"patch_size": [2, 2]}, r"patch_size is \(2, 2\); accepted: three integers"),
        ({"image_dim": 1280}, "image_dim is 1280 and added_kv_proj_dim None; accepted: both or none"),
        ({"image_dim": 1280, "added_kv_proj_dim": 1280}, "added_kv_proj_dim is 1280; accepted: the width, 5120"),
        ({"eps": True}, "eps is True; accepted: a number above 0"),
        ({"eps": 10**400}, "eps is 1000.*; accepted: a number above 0"),
        ({"qk_norm": "x" * 10_000}, r"qk_norm is 'x+\.\.\.x+'; accepted"),
        ({"rope_type": "ntk"}, r"config has \['rope_type'\]; accepted: added_kv_proj_dim, "),
    ],
)
def test_refused(change, words):
    with pytest.raises((TypeError, ValueError), match=words) as refusal:
        from_json({**PUBLISHED, **change})
    assert len(str(refusal.value)) < 400


def test_what_is_no_config():
    for values, words in (
        (None, "the config is a NoneType; accepted: a JSON object"),
        ([1], "the config is a list"),
        ({1: 2}, r"config has \[1\]; accepted"),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            from_json(cast(Any, values))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "expected: diffusers' config"),
        ("{", "expected: diffusers' config"),
        ("[]", "expected: WanTransformer3DModel"),
        ('{"_class_name": "FluxTransformer2DModel"}', "expected: WanTransformer3DModel; found: another class"),
        ('{"attention_head_dim": 64}', "attention_head_dim is 64"),
    ],
)
def test_config_files(tmp_path, text, words):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=rf"config\.json: .*{words}"):
        read_config(tmp_path)


def test_latents_of_another_model():
    for shape, words in (
        ((1, 16, 4, 8), "accepted"),
        ((1, 16, 1, 8, 7), "whole patches"),
        ((1, 16, 1025, 2, 2), "1024"),
        ((1, 16, -2, 2, 2), "accepted"),
        ((0, 16, 1, 2, 2), "accepted"),
    ):
        with pytest.raises(ValueError, match=words):
            T2V_A14B.grid(shape)
    assert T2V_A14B.grid((1, 16, 21, 90, 160)) == (21, 45, 80)
    assert dataclasses.replace(T2V_A14B, in_channels=36) == I2V_A14B


def test_projections_that_are_none():
    with pytest.raises(ValueError, match=r"projection 'attn1\.to_q'; accepted: attn1\.to_qkv, "):
        choose_precisions(T2V_A14B, ["attn1.to_q"])

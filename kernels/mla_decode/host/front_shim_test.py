"""The shims of front-fold and fused step: what they refuse before anything runs."""

from typing import Any

import pytest
import torch

from kernels.mla_decode import mla_decode, mla_decode_qkv
from kernels.mla_decode.host import front_shim
from kernels.mla_decode.oracle.cases import Case
from kernels.mla_decode.oracle.front_cases import FrontCase, front_operands

CASE = FrontCase(Case("shim", 3, 2, 150, rope=32, hidden=256))


def qkv_arguments(**changes):
    operands = front_operands(CASE)
    names = ("hidden_states", "wq_a", "q_norm_w", "wq_b", "wkv_a", "kv_norm_w", "cos", "sin", "q_absorb_w")
    return {
        **{name: getattr(operands, name) for name in names},
        "kv_cache": operands.step.kv_cache,
        "slot_mapping": operands.slot_mapping,
        **changes,
    }


def decode_arguments(**changes):
    step = front_operands(CASE).step
    return {
        **qkv_arguments(),
        **step.index(150)._asdict(),
        "positions": step.positions,
        "out_absorb_w": step.out_absorb_w,
        "o_proj_w": step.o_proj_w,
        "n_prior": 150,
        "softmax_scale": 0.1,
        **changes,
    }


def zeros(*shape, dtype=torch.bfloat16):
    return torch.zeros(*shape, dtype=dtype)


def slots(*values):
    return torch.tensor(values, dtype=torch.int32)


QKV: list[tuple[type[Exception], str, dict[str, Any]]] = [
    (ValueError, "lnc is 3; accepted: 1 or 2", {"lnc": 3}),
    (ValueError, "lnc is 0; accepted: 1 or 2", {"lnc": 0}),
    (ValueError, "trn9", {"target": "trn9"}),
    (TypeError, "kv_cache is torch.float16", {"kv_cache": zeros(75, 1, 16, 160, dtype=torch.float16)}),
    (ValueError, "kv_cache is .*accepted: kv_row_dim 160", {"kv_cache": zeros(75, 1, 16, 161)}),
    (TypeError, "hidden_states is torch.float32", {"hidden_states": torch.zeros(3, 256)}),
    (ValueError, "n_tokens is 129; accepted: up to 128", {"hidden_states": zeros(129, 256)}),
    (ValueError, r"wq_a is \[255, 192\]; accepted: \[256, any\]", {"wq_a": zeros(255, 192)}),
    (TypeError, "wq_a is a list", {"wq_a": []}),
    (TypeError, "q_norm_w is torch.bfloat16; accepted: .* torch.float32", {"q_norm_w": zeros(192)}),
    (ValueError, r"q_norm_w is \[191\]; accepted: \[192\]", {"q_norm_w": torch.ones(191)}),
    (ValueError, r"wq_b is \[192, 130\]; accepted: \[192, 128\]", {"wq_b": zeros(192, 130)}),
    (ValueError, r"wkv_a is \[256, 161\]; accepted: \[256, 160\]", {"wkv_a": zeros(256, 161)}),
    (ValueError, r"kv_norm_w is \[160\]; accepted: \[128\]", {"kv_norm_w": torch.ones(160)}),
    (TypeError, "cos is torch.bfloat16", {"cos": zeros(3, 16)}),
    (ValueError, r"cos is \[2, 16\]; accepted: \[3, 16\]", {"cos": torch.ones(2, 16)}),
    (ValueError, r"sin is \[3, 32\]; accepted: \[3, 16\]", {"sin": torch.ones(3, 32)}),
    (ValueError, "nope is 129; accepted: up to 128", {"q_absorb_w": zeros(2, 129, 128), "wq_b": zeros(192, 322)}),
    (ValueError, r"q_absorb_w is \[2, 32\]", {"q_absorb_w": zeros(2, 32)}),
    (TypeError, "slot_mapping is torch.int64", {"slot_mapping": slots(1, 2, 3).long()}),
    (ValueError, r"slot_mapping is \[2\]; accepted: \[3\]", {"slot_mapping": slots(1, 2)}),
    (ValueError, "slot_mapping has -1; accepted: 0 to 1199", {"slot_mapping": slots(1, -1, 2)}),
    (ValueError, "slot_mapping has 1200; accepted: 0 to 1199", {"slot_mapping": slots(1200, 1, 2)}),
    (ValueError, "slot_mapping has 7 2 times; accepted: each row once", {"slot_mapping": slots(7, 1, 7)}),
    (TypeError, "input_norm_w is torch.bfloat16", {"input_norm_w": zeros(256)}),
    (ValueError, r"input_norm_w is \[255\]; accepted: \[256\]", {"input_norm_w": torch.ones(255)}),
    (ValueError, "norm_eps is 0", {"norm_eps": 0}),
    (TypeError, "norm_eps is None", {"norm_eps": None}),
    (ValueError, "norm_eps is 1000.*; accepted: 1e-30 to 1e.30", {"norm_eps": 10**400}),
    (ValueError, "norm_eps is 1e-60; accepted: 1e-30 to 1e.30", {"norm_eps": 1e-60}),
    (TypeError, "wq_a is sparse, nested or a lazy negation", {"wq_a": zeros(256, 192).to_sparse()}),
    (TypeError, "slot_mapping is sparse", {"slot_mapping": slots(1, 2, 3).to_sparse()}),
]
DECODE: list[tuple[type[Exception], str, dict[str, Any]]] = [
    (TypeError, "out_absorb_w is a NoneType", {"out_absorb_w": None}),
    (ValueError, r"out_absorb_w is \[3, 64, 128\]; accepted: \[2, any, 128\]", {"out_absorb_w": zeros(3, 64, 128)}),
    (ValueError, r"o_proj_w is \[128, 512\]; accepted: \[128, 256\]", {"o_proj_w": zeros(128, 512)}),
    (ValueError, "prior_rows is .* accepted: .128, 3, 3.", {"n_prior": 257}),
    (ValueError, "n_prior must be at least 1", {"n_prior": 0}),
    (ValueError, "positions has -5", {"positions": slots(1, -5, 2)}),
    (ValueError, "softmax_scale is inf", {"softmax_scale": float("inf")}),
    (ValueError, "dma_transposed_chunks is 3", {"dma_transposed_chunks": 3}),
]


@pytest.mark.parametrize(("error", "words", "changes"), QKV)
def test_bad_input_of_both_is_refused_by_name(error, words, changes, monkeypatch):
    monkeypatch.setattr(front_shim, "launch", None)  # nothing runs
    with pytest.raises(error, match=words):
        mla_decode_qkv(**qkv_arguments(**changes))
    with pytest.raises(error, match=words):
        mla_decode(**decode_arguments(**changes))


@pytest.mark.parametrize(("error", "words", "changes"), DECODE)
def test_bad_input_of_the_fused_step_is_refused_by_name(error, words, changes, monkeypatch):
    monkeypatch.setattr(front_shim, "launch", None)
    with pytest.raises(error, match=words):
        mla_decode(**decode_arguments(**changes))


def test_a_cache_that_overlaps_an_input_is_refused_and_left_as_it_is():
    """Which of the two a read would see is nobody's to say."""
    call = decode_arguments()
    call["kv_cache"][-1, 0, -5:] = 0.5
    call["hidden_states"] = call["kv_cache"].view(-1)[-3 * 256 :].view(3, 256)
    before = call["kv_cache"].clone()
    with pytest.raises(TypeError, match="kv_cache shares memory with argument hidden_states"):
        mla_decode(**call)
    assert torch.equal(call["kv_cache"], before)


def test_what_was_refused_with_one_change_is_accepted_without():
    mla_decode_qkv(**qkv_arguments())
    mla_decode(**decode_arguments())

"""The shim: its interface, and what it refuses before anything runs."""

import inspect
import os
import threading
import time
from typing import Any

import pytest
import torch

from common.platform_target import TARGET_VARIABLE
from kernels.mla_decode import mla_decode_attention
from kernels.mla_decode.device import kernel as kernel_module
from kernels.mla_decode.host import launch as launch_module
from kernels.mla_decode.host import shim
from kernels.mla_decode.oracle.cases import Case, normal_operands

CASE = Case("shim", 3, 2, 150, rope=32)
SEED = [
    "q_absorbed_sbuf",
    "q_pe_sbuf",
    "kv_cache",
    "kv_row_cur",
    "prior_rows",
    "prior_key_pos",
    "prior_rows_natural",
    "positions",
    "out_absorb_w",
    "o_proj_w",
    "n_prior",
    "softmax_scale",
]


def arguments(**changes):
    operands = normal_operands(CASE)
    return {
        "q_absorbed": operands.q_absorbed,
        "q_pe": operands.q_pe,
        "kv_cache": operands.kv_cache,
        "kv_row_cur": operands.kv_row_cur,
        **operands.index(CASE.n_prior)._asdict(),
        "positions": operands.positions,
        "out_absorb_w": operands.out_absorb_w,
        "o_proj_w": operands.o_proj_w,
        "n_prior": CASE.n_prior,
        "softmax_scale": CASE.softmax_scale,
        **changes,
    }


def test_interface_is_the_seeds():
    assert list(inspect.signature(kernel_module.mla_decode_attention).parameters) == [*SEED, "config"]
    names = list(inspect.signature(mla_decode_attention).parameters)
    assert names[:12] == ["q_absorbed", "q_pe", *SEED[2:]]
    assert names[12:] == ["target", "lnc", "dma_transposed_chunks"]


def test_all_twelve_are_positional():
    call = arguments()
    assert torch.equal(mla_decode_attention(*call.values()), mla_decode_attention(**call, target="trn2", lnc=1))


def test_targets_give_the_same_bits():
    call = arguments()
    assert torch.equal(mla_decode_attention(**call, target="trn2"), mla_decode_attention(**call, target="trn3"))


def test_threads_run_on_their_own_targets(monkeypatch):
    """The simulator takes its target from the environment, which threads share."""
    monkeypatch.delenv(TARGET_VARIABLE, raising=False)
    monkeypatch.setattr(launch_module.nki, "simulate", lambda kernel: kernel)
    found = []

    def kernel(target):
        time.sleep(0.02)
        found.append(os.environ[TARGET_VARIABLE] == target)

    cpu = torch.device("cpu")
    threads = [
        threading.Thread(target=launch_module.launch, args=(kernel, (target,), cpu, target))
        for target in ("trn2", "trn3", "trn2", "trn3")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 4
    assert TARGET_VARIABLE not in os.environ


def test_queries_are_staged_as_in_sbuf():
    staged = shim.stage_rope(torch.ones(2, 3, 6))
    assert staged.shape == (128, 2, 3)
    assert staged[:6].eq(1).all()
    assert staged[6:].eq(0).all()
    absorbed = torch.arange(2 * 3 * 256).reshape(2, 3, 256)
    assert shim.stage_absorbed(absorbed)[5, 1, 1, 2] == absorbed[1, 2, 128 + 5]


def zeros(*shape, dtype=torch.bfloat16):
    return torch.zeros(*shape, dtype=dtype)


BAD: list[tuple[type[Exception], str, dict[str, Any]]] = [
    (ValueError, "target 'trn1'|trn1", {"target": "trn1"}),
    (ValueError, "lnc is 3; accepted: 1 or 2", {"lnc": 3}),
    (ValueError, "lnc is 0; accepted: 1 or 2", {"lnc": 0}),
    (ValueError, "hidden is 1; accepted on 2 cores: from 2", {"lnc": 2, "o_proj_w": zeros(128, 1)}),
    (TypeError, "kv_cache is a list", {"kv_cache": []}),
    (TypeError, "kv_cache is torch.float16", {"kv_cache": zeros(75, 1, 16, 160, dtype=torch.float16)}),
    (TypeError, "kv_cache is torch.float8_e4m3fn", {"kv_cache": zeros(75, 1, 16, 160, dtype=torch.float8_e4m3fn)}),
    (ValueError, r"kv_cache is \[75, 2, 16, 160\]; accepted: \[n_blocks, 1", {"kv_cache": zeros(75, 2, 16, 160)}),
    (ValueError, "kv_cache is not contiguous", {"kv_cache": zeros(75, 1, 160, 16).transpose(2, 3)}),
    (ValueError, "kv_cache is on device meta", {"kv_cache": torch.empty(1, 1, 1, 160, device="meta").bfloat16()}),
    (ValueError, "accepted: kv_row_dim 160, the widths of q_pe and q", {"kv_cache": zeros(75, 1, 16, 192)}),
    (TypeError, "q_absorbed is torch.float32; accepted: .* torch.bfloat16", {"q_absorbed": torch.zeros(3, 2, 128)}),
    (ValueError, r"q_absorbed is \[3, 256\]", {"q_absorbed": zeros(3, 256)}),
    (ValueError, r"q_absorbed is \[0, 2, 128\], which is empty", {"q_absorbed": zeros(0, 2, 128)}),
    (ValueError, r"q_pe is \[3, 4, 32\]; accepted: \[3, 2, any\]", {"q_pe": zeros(3, 4, 32)}),
    (TypeError, "q_pe is torch.float32", {"q_pe": torch.zeros(3, 2, 32)}),
    (ValueError, r"kv_row_cur is \[2, 160\]; accepted: \[3, 160\]", {"kv_row_cur": zeros(2, 160)}),
    (TypeError, "prior_rows is torch.int64", {"prior_rows": torch.zeros(128, 3, 2, dtype=torch.int64)}),
    (ValueError, "prior_rows is .* accepted: .128, 3, 2.", {"prior_rows": torch.zeros(128, 3, 1, dtype=torch.int32)}),
    (TypeError, "prior_key_pos is torch.int32", {"prior_key_pos": torch.zeros(128, 3, 2, dtype=torch.int32)}),
    (TypeError, "prior_rows_natural is torch.int32", {"prior_rows_natural": torch.zeros(128, 3, 2).int()}),
    (ValueError, "prior_rows is .* accepted: .128, 3, 3.", {"n_prior": 257}),
    (TypeError, "n_prior must be an integer, got 1.5", {"n_prior": 1.5}),
    (ValueError, "n_prior must be at least 1, got 0", {"n_prior": 0}),
    (TypeError, "positions is torch.int64", {"positions": torch.zeros(3, dtype=torch.int64)}),
    (ValueError, "positions has -1", {"positions": torch.tensor([1, -1, 2], dtype=torch.int32)}),
    (ValueError, "positions has 16777217", {"positions": torch.tensor([1, 2**24 + 1, 2], dtype=torch.int32)}),
    (ValueError, r"out_absorb_w is .* accepted: \[2, any, 128\]", {"out_absorb_w": zeros(3, 64, 128)}),
    (ValueError, r"o_proj_w is \[127, 512\]; accepted: \[128, any\]", {"o_proj_w": zeros(127, 512)}),
    (TypeError, "o_proj_w is torch.float32", {"o_proj_w": torch.zeros(128, 512)}),
    (TypeError, "softmax_scale is None", {"softmax_scale": None}),
    (ValueError, "softmax_scale is nan", {"softmax_scale": float("nan")}),
    (ValueError, "softmax_scale is -1.0", {"softmax_scale": -1.0}),
    (ValueError, "softmax_scale is 1000.*; accepted: 1e-30 to 1e.30", {"softmax_scale": 10**400}),
    (ValueError, "softmax_scale is 1e-38; accepted: 1e-30 to 1e.30", {"softmax_scale": 1e-38}),
    (TypeError, "q_absorbed is sparse, nested or", {"q_absorbed": zeros(3, 2, 128).to_sparse()}),
    (TypeError, "q_pe is sparse, nested or", {"q_pe": torch.nested.nested_tensor([zeros(2, 32)] * 3)}),
    (TypeError, "out_absorb_w is sparse, nested or a lazy neg", {"out_absorb_w": torch._neg_view(zeros(2, 64, 128))}),
    (TypeError, "positions is sparse", {"positions": torch.ones(3, dtype=torch.int32).to_sparse()}),
    (ValueError, "dma_transposed_chunks is 2; accepted: 0 to 1", {"dma_transposed_chunks": 2}),
]


@pytest.mark.parametrize(
    ("error", "words", "changes"), BAD, ids=[f"{next(iter(c))}-{i}" for i, (_, _, c) in enumerate(BAD)]
)
def test_bad_input_is_refused_by_name(error, words, changes, monkeypatch):
    monkeypatch.setattr(shim, "launch", None)  # nothing runs
    with pytest.raises(error, match=words):
        mla_decode_attention(**arguments(**changes))


@pytest.mark.parametrize(
    ("words", "tokens", "heads", "rank", "rope", "value"),
    [
        ("n_tokens is 129", 129, 1, 128, 64, 8),
        ("n_heads is 129", 1, 129, 128, 64, 8),
        ("kv_lora_rank is 192; accepted: a multiple of 128", 1, 1, 192, 64, 8),
        ("kv_lora_rank is 640; accepted: .* a PSUM bank", 1, 1, 640, 64, 8),
        ("rope is 33; accepted: an even number", 1, 1, 128, 33, 8),
        ("rope is 130; accepted: up to 128", 1, 1, 128, 130, 8),
        ("v_head_dim is 129", 1, 1, 128, 64, 129),
        ("n_tokens 128, n_heads 128 and n_prior 150 do not fit: SBUF of trn2", 128, 128, 512, 64, 8),
    ],
)
def test_impossible_sizes_are_refused_by_name(words, tokens, heads, rank, rope, value):
    call = arguments(
        q_absorbed=zeros(tokens, heads, rank),
        q_pe=zeros(tokens, heads, rope),
        kv_cache=zeros(2, 1, 16, rope + rank),
        kv_row_cur=zeros(tokens, rope + rank),
        prior_rows=zeros(128, tokens, 2, dtype=torch.int32),
        prior_key_pos=zeros(128, tokens, 2, dtype=torch.float32),
        prior_rows_natural=zeros(128, tokens, 2, dtype=torch.uint32),
        positions=zeros(tokens, dtype=torch.int32),
        out_absorb_w=zeros(heads, value, rank),
        o_proj_w=zeros(heads * value, 64),
    )
    with pytest.raises(ValueError, match=words):
        mla_decode_attention(**call)

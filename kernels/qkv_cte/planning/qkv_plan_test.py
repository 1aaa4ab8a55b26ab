"""Plans of general calls against what simulated runs allocate and move, to the byte, in all modes."""

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import nkisim
from common import schedule
from common.tiling import round_up
from kernels.qkv_cte.device.config import CacheStage, Flow, HeadStage, Stages
from kernels.qkv_cte.device.qkv_kernel import qkv_projection
from kernels.qkv_cte.host.interface import NormType, QKNormConfig, QuantizationType
from kernels.qkv_cte.host.qkv_call import prepare
from kernels.qkv_cte.oracle.qkv_cases import QKVCase, random_call
from kernels.qkv_cte.planning import flow_plan, plan
from kernels.qkv_cte.planning.plan_checks import moved_bytes, on_chip

FLOATS = [torch.bfloat16, torch.float16, torch.float32]
HEAD_NORMS = [None, NormType.RMS_NORM, NormType.RMS_NORM_SKIP_GAMMA, NormType.LAYER_NORM]
INPUT_NORMS = [NormType.NO_NORM, NormType.RMS_NORM, NormType.RMS_NORM_SKIP_GAMMA, NormType.LAYER_NORM]
ACROSS = QKNormConfig(NormType.RMS_NORM_ACROSS_HEADS)
VECTORS = [f"{name}_{place}_{v}" for name in "qk" for place in ("before", "after") for v in ("gamma", "beta")]


@st.composite
def qkv_cases(draw):
    """Any call that is accepted, of sizes that take milliseconds."""
    quantization = draw(st.sampled_from(list(QuantizationType)))
    row_mx, plain = quantization is QuantizationType.ROW_MX, quantization is QuantizationType.NONE
    lnc = draw(st.sampled_from([1, 2]))
    d_head = draw(st.sampled_from([2, 10, 64, 96, 128, 512]))
    kv_heads = draw(st.integers(0, 3))
    across = draw(st.integers(0, 4)) == 0
    pairs = st.builds(
        QKNormConfig,
        st.sampled_from(HEAD_NORMS),
        st.sampled_from(HEAD_NORMS if kv_heads else [None]),
        st.just(1e-5),
    )
    pre, post = (draw(st.none() | pairs) for _ in range(2))
    cache = draw(st.sampled_from(["", "flat", "blocks"])) if kv_heads else ""
    if across:
        norm = NormType.RMS_NORM_ACROSS_HEADS
        pre, post, cache = QKNormConfig(norm, norm if kv_heads else None), None, ""
    rope = draw(st.booleans())
    vector_dtype = draw(st.sampled_from([torch.float32, torch.bfloat16] if across else FLOATS))
    return QKVCase(
        "any",
        lnc * draw(st.integers(1, 200)),
        draw(st.integers(1, 700)) if plain else 128 * draw(st.integers(1, 20)),
        draw(st.integers(1, 6)),
        kv_heads,
        d_head,
        draw(st.integers(1, 2)),
        lnc,
        draw(st.sampled_from(["trn2", "trn3"])) if plain else "trn3",
        quantization,
        draw(st.sampled_from(FLOATS)),
        draw(st.sampled_from(FLOATS)),
        vector_dtype,
        bias=draw(st.booleans()),
        residuals=0 if row_mx else draw(st.integers(0, 2)),
        norm=NormType.NO_NORM if row_mx else draw(st.sampled_from(INPUT_NORMS)),
        padding=draw(st.integers(0, 40)) if plain else 0,
        rope=rope,
        own_k_caches=rope and kv_heads > 0 and not across and draw(st.booleans()),
        pre=pre,
        post=post,
        nbsd=d_head == 128 and draw(st.booleans()),
        cache=cache,
        cache_dtype=draw(st.sampled_from([None, torch.float8_e5m2])) if cache else None,
        sums=tuple(name for name in ("qkv" if kv_heads else "q") if draw(st.integers(0, 3)) == 0),
    )


@st.composite
def flows(draw, made):
    """Any flow that a plan may have."""
    early = flow_plan.can_be_early(made.dims, made.norm_rope) and draw(st.booleans())
    kept = reread = 0
    if early and made.norm_rope.sum_columns:
        kept = draw(st.integers(0, made.dims.s_tiles))
        reread = made.dims.s_tiles - kept
    pass_buffers = draw(st.integers(min(reread, 1), min(reread, 3)))
    return Flow(early, kept, pass_buffers, draw(st.integers(1, 4)), draw(st.integers(0, 4)), draw(st.booleans()))


def assert_exact(made, tensors, target):
    finished = nkisim.run(
        qkv_projection[made.dims.cores],
        config=made.config,
        **tensors,
        options=nkisim.Options(target=target, numerics=False),
    )
    planned = {
        (a.name, a.address_bytes, a.bytes_per_partition) for a in (*made.sbuf.allocations, *made.psum.allocations)
    }
    # Where the cores share the columns one of them may have no K; their programs are the same.
    assert set().union(*(on_chip(core) for core in finished.cores)) == planned
    peaks = [core.memory.sbuf_peak_bytes for core in finished.cores]
    assert max(peaks) <= round_up(made.sbuf.peak_bytes, 4)
    if not made.dims.column_unit:
        assert peaks == [round_up(made.sbuf.peak_bytes, 4)] * made.dims.cores
        assert all(core.memory.psum_peak_banks == len(made.psum.allocations) for core in finished.cores)
    assert_moved(made, moved_bytes(finished))


def assert_moved(made, moved):
    def read(*names):
        return sum(moved["read", name] for name in names)

    def written(*names):
        return sum(moved["written", name] for name in names)

    hbm = made.hbm
    block_scales = read("weight_scales") if made.dims.format.name == "mxfp8" else 0
    assert read("weight") + block_scales == hbm.weights
    assert read("hidden", "residual_0", "residual_1") == hbm.activations
    assert read("weight_scales", "bias") - block_scales == hbm.channels
    assert written("output") == hbm.outputs + hbm.norm_rope_writes
    assert read("output") == hbm.norm_rope_reads
    assert read("q_gamma", "k_gamma") == hbm.gammas
    assert read("cos_cache", "sin_cache", "k_cos_cache", "k_sin_cache") == hbm.rope_caches
    assert read("input_gamma", "input_beta", "k_scale", "v_scale", *VECTORS) == hbm.vectors
    assert read("slot_mapping") == hbm.slots
    assert written("k_cache", "v_cache") == hbm.cache_writes
    assert written("q_squared_sum", "k_squared_sum", "v_squared_sum") == hbm.squared_sums
    assert moved.total() == hbm.total


@settings(max_examples=250, derandomize=True, deadline=None, database=None)
@given(case=qkv_cases(), data=st.data())
def test_any_plan_is_what_a_run_allocates_and_moves(case, data):
    try:
        prepared = prepare(random_call(case), target=case.target, lnc=case.lnc)
    except ValueError as refusal:
        assert "only divide into" in str(refusal)  # noqa: PT017 - heads that two cores cannot share
        return
    made = prepared.plan
    degree = data.draw(st.none() | st.integers(1, min(8, made.dims.s_tiles)))
    resident = data.draw(st.none() | st.integers(0, made.dims.h_tiles))
    policy = functools.partial(schedule.force, degree=degree, resident_h_tiles=resident)
    flow = data.draw(flows(made))
    made = plan.make(made.dims, made.hardware, policy, made.norm_rope, made.nbsd_head_dim, flow, made.stages)
    assert_exact(made, prepared.tensors, case.target)


@pytest.mark.parametrize("stages", [Stages(heads=HeadStage(64, ())), Stages(cache=CacheStage(128, 64, 2))])
def test_what_follows_a_finished_norm_cannot_go_with_one_in_the_evictions(stages):
    made = prepare(random_call(QKVCase("across", 129, 256, 2, pre=ACROSS)), target="trn3", lnc=1).plan
    flow = Flow(early=True, kept_tiles=2)
    plan.make(made.dims, made.hardware, norm_rope=made.norm_rope, flow=flow)
    with pytest.raises(ValueError, match=r"flow.early is True; accepted: False, beside norms of single heads or KV"):
        plan.make(made.dims, made.hardware, norm_rope=made.norm_rope, flow=flow, stages=stages)


def test_llama_projection_by_hand():
    """H = 4,096, 8 + 2 heads of 128, bf16: RMSNorm, RoPE, RMSNorm of heads, block cache in fp8; 4,096 tokens, LNC2."""
    norm = QKNormConfig(NormType.RMS_NORM, NormType.RMS_NORM)
    case = QKVCase(
        "llama", 4096, 4096, 8, 1, 128, lnc=2, norm=NormType.RMS_NORM, rope=True, pre=norm, cache="blocks",
        cache_dtype=torch.float8_e4m3fn,
    )  # fmt: skip
    made = prepare(random_call(case), target="trn3", lnc=2).plan
    width = 10 * 128
    rows = 2 * (2 * 2 * 4096 + 4 + 4)
    vectors = 4 * 4096 + 2 * 4 * 128
    heads = 2 * (2 * 4 * 512 + 4 * 4)
    caches = 2 * 4 + 2 * (4 * 128 + 128) + 2 * 4
    s_tile = 2 * width + 2 * 32 * 128 + 2 * 4 * 128
    weights = 32 * 2 * width
    fixed = rows + vectors + heads + caches
    degree = min((245_752 - fixed - weights) // s_tile, 8)
    assert (made.schedule.degree, made.schedule.prefetch) == (degree, "full")
    assert made.sbuf.peak_bytes == fixed + weights + degree * s_tile
    assert made.hbm.weights == 2 * 2 * 4096 * width == made.minimum.weights
    assert made.hbm.cache_writes == 2 * 4096 * 128
    assert made.hbm.slots == 4 * 4096


def test_rows_too_long_for_two_rotate_through_one():
    case = QKVCase("wide", 256, 24_576, 1, 0, 128, norm=NormType.RMS_NORM, vector_dtype=torch.bfloat16)
    prepared = prepare(random_call(case), target="trn3", lnc=1)
    assert prepared.plan.row_buffers == 1
    assert_exact(prepared.plan, prepared.tensors, "trn3")


def test_token_generation_reads_each_weight_once():
    """Its cores share the columns; a context of as many columns reads all weights on both."""
    decode = prepare(random_call(QKVCase("decode", 1, 1024, 8, 2, lnc=2)), target="trn3", lnc=2).plan
    assert decode.dims.column_unit == 1
    assert decode.hbm.weights == 2 * 1024 * 12 * 64
    context = prepare(random_call(QKVCase("context", 98, 1024, 8, 2, lnc=2)), target="trn3", lnc=2).plan
    assert context.dims.column_unit == 0
    assert context.hbm.weights == 2 * decode.hbm.weights


@pytest.mark.parametrize(("tokens", "unit"), [(96, 1), (97, 0)])
def test_threshold_of_token_generation(tokens, unit):
    made = prepare(random_call(QKVCase("edge", tokens, 256, 2)), target="trn3", lnc=1).plan
    assert made.dims.column_unit == unit
    for case in (QKVCase("edge", tokens, 256, 2, pre=ACROSS), QKVCase("edge", tokens, 256, 2, sums=("q",))):
        assert prepare(random_call(case), target="trn3", lnc=1).plan.dims.column_unit == 0

"""The general projection's op: torch's own checks of schema, mutation and fakes; compiled and exported calls."""

import dataclasses

import pytest
import torch

from kernels.qkv_cte import Choice, NormType, QKNormConfig, QKVArguments, QKVOutputLayout, QuantizationType, qkv
from kernels.qkv_cte.device.config import Flow
from kernels.qkv_cte.host import op
from kernels.qkv_cte.host.entry import ENTRY, WRITTEN

CHECKS = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")


def call(**changes):
    """130 tokens of 2 batches, 2 query heads and 1 of keys and values, of 128 columns."""
    generator = torch.Generator().manual_seed(3)

    def random(*shape):
        return torch.randn(*shape, generator=generator).bfloat16()

    given = {
        "input": random(2, 66, 256),
        "fused_qkv_weights": random(256, 512),
        "num_q_heads": 2,
        "num_kv_heads": 1,
        "d_head": 128,
    }
    return QKVArguments(**(given | changes))


def with_caches():
    return call(
        k_cache=torch.zeros(2, 80, 128).bfloat16(),
        v_cache=torch.zeros(2, 80, 128).bfloat16(),
        q_squared_sum_out=torch.zeros(2, 66),
    )


def with_norms():
    angles = torch.linspace(0, 3, 2 * 66 * 128).reshape(2, 66, 128)
    return call(
        fused_norm_type=NormType.RMS_NORM,
        gamma_norm_weights=torch.ones(1, 256).bfloat16(),
        fused_rope=True,
        cos_cache=angles.cos(),
        sin_cache=angles.sin(),
        qk_norm_pre_rope=QKNormConfig(NormType.RMS_NORM, NormType.RMS_NORM, 1e-5),
        qk_norm_pre_rope_q_gamma=torch.ones(1, 128),
        qk_norm_pre_rope_k_gamma=torch.ones(1, 128),
        output_layout=QKVOutputLayout.NBSd,
    )


CALLS = {"plain": call, "caches": with_caches, "norms": with_norms}


def options(made):
    return {
        field.name: getattr(made, field.name)
        for field in dataclasses.fields(made)
        if field.name not in ("input", "fused_qkv_weights")
    }


@pytest.mark.parametrize("make", CALLS.values(), ids=CALLS)
def test_opcheck(make):
    torch.library.opcheck(torch.ops.qkv_cte.qkv.default, (), op.flat(ENTRY, make()) | {"lnc": 2}, test_utils=CHECKS)
    one, other = make(), make()
    expected = qkv(one.input, one.fused_qkv_weights, **options(one))
    assert torch.equal(torch.ops.qkv_cte.qkv(**op.flat(ENTRY, other)), expected)
    for name in WRITTEN:
        if getattr(one, name) is not None:
            assert torch.equal(getattr(one, name), getattr(other, name))
            assert getattr(one, name).any()


class Layer(torch.nn.Module):
    """A caller: the projection between two operations of torch."""

    def __init__(self, made):
        super().__init__()
        self.weights, self.options = made.fused_qkv_weights, options(made)

    def forward(self, x):
        return qkv(x, self.weights, **self.options) * 2


@pytest.mark.parametrize("make", CALLS.values(), ids=CALLS)
def test_a_compiled_layer_calls_the_op(make):
    compiled, plain = Layer(make()), Layer(make())
    found = torch.compile(compiled, backend="aot_eager", fullgraph=True)(make().input)
    assert torch.equal(found, plain(make().input))
    for name in WRITTEN:
        if plain.options[name] is not None:
            assert torch.equal(compiled.options[name], plain.options[name])


def test_caches_that_are_views_of_one_tensor_are_written_when_compiled():
    made = with_caches()
    plain = Layer(made)
    expected = plain(made.input)
    both = torch.zeros(2, *made.k_cache.shape, dtype=made.k_cache.dtype)

    def forward(x, both):
        return qkv(x, plain.weights, **plain.options | {"k_cache": both[0], "v_cache": both[1]}) * 2

    assert torch.equal(torch.compile(forward, backend="aot_eager", fullgraph=True)(made.input, both), expected)
    assert torch.equal(both, torch.stack([made.k_cache, made.v_cache]))


@pytest.mark.parametrize("make", [call, with_norms], ids=["plain", "norms"])
@pytest.mark.parametrize("strict", [False, True])
def test_export(make, strict):
    layer, x = Layer(make()), make().input
    exported = torch.export.export(layer, (x,), strict=strict)
    assert ["qkv_cte.qkv.default" in str(node.target) for node in exported.graph.nodes].count(True) == 1
    assert torch.equal(exported.module()(x), layer(x))


def test_flat_and_back():
    """Every kind of field, given: nothing is lost on the way through the schema."""
    made = dataclasses.replace(
        with_norms(),
        quantization_type=QuantizationType.NONE,
        qk_norm_post_rope=QKNormConfig(NormType.LAYER_NORM, None, 1e-3),
        k_scale=0.5,
        v_scale=torch.ones(1),
        fp8_max=240.0,
        hidden_actual=200,
        replica_groups=((0, 2), (1, 3)),
        choice=Choice(2, 1, Flow(chunk_buffers=3, scalar_every=4)),
    )
    back = op.unflat(ENTRY, op.flat(ENTRY, made))
    for field in dataclasses.fields(made):
        one, other = getattr(made, field.name), getattr(back, field.name)
        assert one is other or one == other, field.name


def test_the_schema_says_what_is_written():
    schema = torch.ops.qkv_cte.qkv.default._schema
    assert tuple(a.name for a in schema.arguments if a.is_write) == WRITTEN
    names = {field.name for field in dataclasses.fields(QKVArguments)}
    flat = {a.name for a in schema.arguments}
    assert names - flat == {"qk_norm_pre_rope", "qk_norm_post_rope", "replica_groups"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"output_layout": "BDS"}, "QKVOutputLayout has no 'BDS'; accepted: BSD, NBSd"),
        ({"quantization_type": "FP8"}, "QuantizationType has no 'FP8'; accepted: NONE, ROW_MX, MXFP8"),
        ({"qk_norm_pre_rope_q": "RMS", "qk_norm_pre_rope_eps": 1e-6}, "NormType has no 'RMS'; accepted: NO_NORM"),
        ({"replica_ranks": [0, 1, 2], "ranks_per_group": 2}, "ranks_per_group is 2 of 3 replica_ranks; accepted"),
        (
            {"qk_norm_pre_rope_q": "RMS_NORM_SKIP_GAMMA"},
            "qk_norm_pre_rope_eps is None; accepted with qk_norm_pre_rope_q",
        ),
        (
            {"qk_norm_post_rope_k": "RMS_NORM_SKIP_GAMMA"},
            "qk_norm_post_rope_eps is None; accepted with qk_norm_post_rope",
        ),
        ({"k_scale": torch.ones(1), "k_scale_number": 0.5}, "k_scale and k_scale_number are given; accepted: one of"),
        ({"ranks_per_group": 2}, "ranks_per_group is 2 without replica_ranks; accepted: 0"),
        ({"d_head": 100}, ".*fused_qkv_weights"),
    ],
)
def test_bad_input_is_refused_by_name(changes, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        torch.ops.qkv_cte.qkv(**(op.flat(ENTRY, call()) | changes))

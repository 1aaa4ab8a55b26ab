"""A layer's projections on the kernel against the layer's own."""

import dataclasses
import math

import pytest
import torch
from safetensors.torch import save_file

from common import row_mx
from common.hardware import TRN2, TRN3
from kernels.qkv_cte.bench import layer, measure, small_layer
from kernels.qkv_cte.bench.checkpoint import Linear, read_layer
from kernels.qkv_cte.bench.random_layer_input import random_layer_input
from kernels.qkv_cte.bench.small_layer import HIDDEN
from kernels.qkv_cte.oracle.compare import Errors


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("layer") / "layer.safetensors"
    inputs = {
        "hidden_states": random_layer_input(130, HIDDEN, seed=5),
        "encoder_hidden_states": random_layer_input(6, HIDDEN, seed=6),
    }
    save_file(small_layer.tensors() | inputs, path)
    return read_layer(path, 0)


@pytest.fixture(scope="module")
def projections(weights):
    return layer.prepare(weights, TRN3, lnc=2)


def test_the_calls_are_those_of_wan22(projections):
    calls = [(p.name, list(p.linears), p.plan.dims.seqlen, p.plan.dims.width) for p in projections]
    assert calls == [
        ("self-attention QKV", ["Q", "K", "V"], 130, 3 * HIDDEN),
        ("cross-attention Q", ["Q"], 130, HIDDEN),
        ("cross-attention K", ["K"], 6, HIDDEN),
        ("cross-attention V", ["V"], 6, HIDDEN),
    ]


def test_every_segment_is_close_to_the_layers_own(projections):
    for projection in projections:
        result = layer.run(projection)
        assert result.accepted
        assert [segment.name for segment in result.segments] == list(projection.linears)
        for segment in result.segments:
            assert segment.cosine is not None
            assert segment.cosine > 0.998
            # Less would mean that nothing was quantised.
            assert 0.01 < segment.relative_rms < layer.MAX_RELATIVE_RMS


def test_a_result_far_from_its_own_operands_is_not_accepted(projections):
    result = layer.run(projections[1])
    assert result.accepted
    assert not dataclasses.replace(result, errors=Errors(1.5, (0, 0), 0.0, 0)).accepted


def zeroed(weights):
    """The layer with cross-attention's K at zero, weights and bias."""
    linear = weights.cross_attention.to_k
    zero = Linear(torch.zeros_like(linear.weight), torch.zeros_like(linear.bias))
    return dataclasses.replace(weights, cross_attention=dataclasses.replace(weights.cross_attention, to_k=zero))


def test_a_projection_of_zeros_is_accepted(weights):
    projection = layer.prepare(zeroed(weights), TRN3, lnc=2)[2]
    result = layer.run(projection)
    assert result.accepted
    assert [(segment.cosine, segment.relative_rms) for segment in result.segments] == [(None, 0.0)]


def test_anything_but_zeros_of_a_projection_of_zeros_is_not(weights):
    projection = layer.prepare(zeroed(weights), TRN3, lnc=2)[2]
    output = torch.zeros(1, 6, HIDDEN, dtype=torch.bfloat16)
    output[0, 5, 7] = 1e-30
    (segment,) = layer.compare_segments(projection, output)
    assert (segment.cosine, segment.relative_rms, segment.accepted) == (None, math.inf, False)


def test_zeros_of_a_projection_of_other_values_are_not_accepted(projections):
    (segment,) = layer.compare_segments(projections[2], torch.zeros(1, 6, HIDDEN, dtype=torch.bfloat16))
    assert (segment.cosine, segment.relative_rms, segment.accepted) == (None, 1.0, False)


def test_operands_are_the_layers_matrices(projections):
    fused = projections[0]
    operands = layer.quantise(fused)
    matrix = row_mx.unpack_weight(operands.weight).float() * operands.weight_scales
    own = torch.cat([linear.weight for linear in fused.linears.values()]).T.float()
    # Half a unit of the last of three fraction bits, or of the smallest subnormal code.
    assert ((matrix - own).abs() <= torch.maximum(own.abs() / 16, operands.weight_scales * 2.0**-10)).all()
    assert operands.bias is not None
    assert torch.equal(operands.bias[0], torch.cat([linear.bias for linear in fused.linears.values()]).float())


@pytest.mark.parametrize(("one", "other"), [("Q", "K"), ("K", "V"), ("Q", "V")])
def test_exchanged_segments_are_seen(projections, one, other):
    fused = projections[0]
    output = measure.run(fused.plan, layer.quantise(fused)).output
    linears = dict(fused.linears)
    linears[one], linears[other] = linears[other], linears[one]
    wrong = dataclasses.replace(fused, linears=linears)
    distances = {segment.name: segment.relative_rms for segment in layer.compare_segments(wrong, output)}
    assert distances.pop(one) > 0.5
    assert distances.pop(other) > 0.5
    assert all(distance < layer.MAX_RELATIVE_RMS for distance in distances.values())


def test_without_stored_inputs_random_ones_are_projected(weights):
    bare = dataclasses.replace(weights, hidden_states=None, encoder_hidden_states=None)
    sizes = [tuple(p.hidden_states.shape) for p in layer.prepare(bare, TRN3, lnc=2)]
    assert sizes == [(1, 256, HIDDEN), (1, 256, HIDDEN), (1, 512, HIDDEN), (1, 512, HIDDEN)]


def test_refusals(weights):
    with pytest.raises(ValueError, match=r"trn2.*MX"):
        layer.prepare(weights, TRN2, lnc=2)
    odd = dataclasses.replace(weights, hidden_states=torch.zeros(1, 3, HIDDEN))
    with pytest.raises(ValueError, match="seqlen is 3 on 2 cores"):
        layer.prepare(odd, TRN3, lnc=2)


def test_random_input_is_seeded_and_uneven_over_channels():
    first, again, other = (random_layer_input(64, 512, seed) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    spread = first.std(dim=1)[0]
    assert spread.max() / spread.median() > 4

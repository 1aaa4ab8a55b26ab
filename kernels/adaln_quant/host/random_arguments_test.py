"""Random arguments: a call runs and is right, or is refused with a ValueError or TypeError."""

from collections import Counter

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels.adaln_quant import adaln_modulate, row_quantize_packed
from kernels.adaln_quant.oracle import compare
from kernels.adaln_quant.oracle.cases import Operands

anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 300),
    st.sampled_from([2**70, 10**400, 0.5, 1e-6, float("nan"), float("inf"), "row", "trn2", "trn3", "", (), b"x"]),
    st.just(np.zeros((1, 4), np.float32)),
)
values = st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-30, 1e-45, 2.0**48, 3e38, torch.nan, torch.inf])
dtypes = st.sampled_from(
    [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn, torch.int8, torch.complex64]
)


@st.composite
def tensors(draw):
    """Tensors of few elements, of all kinds that a caller may hold."""
    shape = draw(st.lists(st.sampled_from([0, 1, 2, 6, 8, 33, 64]), max_size=4))
    tensor = torch.full(shape, draw(values)).to(draw(dtypes))
    change = draw(st.sampled_from(["none", "none", "meta", "sparse", "transposed", "parameter"]))
    if change == "meta":
        return tensor.to("meta")
    if change == "sparse" and tensor.dtype == torch.float32 and tensor.dim():
        return tensor.to_sparse()
    if change == "parameter" and tensor.is_floating_point():
        return torch.nn.Parameter(tensor)
    return tensor.movedim(0, -1) if change == "transposed" and tensor.dim() > 1 else tensor


@st.composite
def calls(draw):
    """A right call of random sizes and values, of which up to two arguments are replaced."""
    lnc = draw(st.sampled_from([1, 2]))
    batch, seqlen, hidden = draw(st.integers(1, 2)), lnc * draw(st.integers(1, 2)), 4 * draw(st.integers(1, 3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    kinds = st.sampled_from([torch.float32, torch.bfloat16])
    x = torch.randn(batch, seqlen, hidden, generator=generator)
    x[0, 0, 0] = draw(st.sampled_from([0.0, 1e-30, 1e4]))
    vectors = (batch, seqlen, hidden) if draw(st.booleans()) else (batch, hidden)
    modulation = draw(kinds)
    call = {
        "x": x.to(draw(kinds)),
        "scale": torch.randn(vectors, generator=generator).to(modulation),
        "shift": torch.randn(vectors, generator=generator).to(modulation),
        "eps": draw(st.sampled_from([1e-6, 1, 2.0**-80])),
        "quant": draw(st.sampled_from(["row", None])),
        "lnc": lnc,
        "target": draw(st.sampled_from(["trn2", "trn3", "trn3"])),
    }
    return call | draw(st.dictionaries(st.sampled_from(list(call)), st.one_of(anything, tensors()), max_size=2))


def endings(function, names):
    """How often calls ran and were refused."""
    ended: Counter[str] = Counter()

    # The first tensor on meta makes torch import what takes it long on a busy machine.
    slow = [HealthCheck.too_slow]

    @settings(max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=slow)
    @given(calls())
    def end(call):
        ended[how_it_ends(function, {name: call[name] for name in names})] += 1

    end()
    return ended


def how_it_ends(function, call):
    try:
        result = function(**call)
    except (ValueError, TypeError):
        return "refused"
    scale, shift = (call[name].detach() if name in call else None for name in ("scale", "shift"))
    operands = Operands(call["x"].detach(), scale, shift)
    errors = compare.compare(result, operands, float(call.get("eps", 1.0)))
    assert errors.accepted, errors
    return "ran"


def test_modulation_runs_or_is_refused():
    ended = endings(adaln_modulate, ("x", "scale", "shift", "eps", "quant", "lnc", "target"))
    assert ended["ran"] > 10
    assert ended["refused"] > 10


def test_quantisation_runs_or_is_refused():
    ended = endings(row_quantize_packed, ("x", "lnc", "target"))
    assert ended["ran"] > 10
    assert ended["refused"] > 10

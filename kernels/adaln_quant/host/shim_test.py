"""The shim: what it returns, and what it refuses before anything runs."""

import dataclasses
import inspect
import math
import os

import pytest
import torch

import nki
from common import row_mx
from common.platform_target import TARGET_VARIABLE
from kernels.adaln_quant import adaln_modulate, row_quantize_packed
from kernels.adaln_quant.host import launch
from kernels.adaln_quant.host.call import adaln_operands, quantise_operands
from kernels.adaln_quant.oracle import cases, compare
from kernels.adaln_quant.oracle.cases import BATCH, BF16, NONE, TOKEN, Case

CASE = Case("shim", 6, 256, batch=2, lnc=2)


def arguments(case=CASE, **changes):
    operands = cases.normal_operands(case)
    return {"x": operands.x, "scale": operands.scale, "shift": operands.shift, "quant": "row", **changes}


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("modulation", [BATCH, TOKEN])
@pytest.mark.parametrize("quant", ["row", None])
def test_modulates(lnc, modulation, quant):
    operands = cases.normal_operands(dataclasses.replace(CASE, modulation=modulation))
    x, scale, shift = operands.tensors
    result = adaln_modulate(x, scale, shift, quant=quant, target="trn3", lnc=lnc)
    errors = compare.compare(result, operands)
    assert errors.accepted, errors


@pytest.mark.parametrize("lnc", [1, 2])
def test_quantises(lnc):
    x = cases.normal_operands(dataclasses.replace(CASE, modulation=NONE)).x
    result = row_quantize_packed(x, lnc=lnc)
    assert torch.equal(result.view(torch.uint8), row_mx.row_quantise_packed(x).view(torch.uint8))


def test_bf16_on_trn2():
    call = arguments(quant=None)
    assert torch.equal(adaln_modulate(**call, target="trn2"), adaln_modulate(**call))


def test_interface():
    names = list(inspect.signature(adaln_modulate).parameters)
    assert names == ["x", "scale", "shift", "eps", "quant", "target", "lnc"]
    assert list(inspect.signature(row_quantize_packed).parameters) == ["x", "target", "lnc"]


def test_eps_is_taken():
    call = arguments(quant=None)
    tiny = {**call, "x": (call["x"].float() * 1e-3).bfloat16()}
    operands = cases.Operands(tiny["x"], tiny["scale"], tiny["shift"])
    assert compare.compare(adaln_modulate(**tiny, eps=0.25), operands, eps=0.25).accepted
    assert not compare.compare(adaln_modulate(**tiny), operands, eps=0.25).accepted


@pytest.mark.parametrize("eps", [2.0**-87, 2.0**96])
def test_eps_at_the_ends_of_its_range(eps):
    """The root is right there, for rows without variance and for those of the largest."""
    call = arguments(quant=None)
    call["x"] = torch.full((2, 6, 256), 2.0**48) * torch.tensor([1.0, -1.0]).repeat(128)
    call["x"][:, 3] = 7.0
    result = adaln_modulate(**call, eps=eps)
    assert compare.compare(result, cases.Operands(call["x"], call["scale"], call["shift"]), eps).accepted


def test_views_and_parameters_are_taken():
    call = arguments()
    expected = adaln_modulate(**call)
    call["x"] = call["x"].transpose(0, 1).contiguous().transpose(0, 1)
    call["scale"] = torch.stack([call["scale"], call["scale"]], dim=-1)[..., 0]
    call["shift"] = torch.nn.Parameter(call["shift"])
    operands = (*adaln_operands(**call, eps=1e-6, target="trn3", lnc=2), *quantise_operands(call["x"], "trn3", 2))
    # On a device the kernel takes them as they lie.
    assert all(operand.is_contiguous() for operand in operands if torch.is_tensor(operand))
    result = adaln_modulate(**call)
    assert not result.requires_grad
    assert torch.equal(result.view(torch.uint8), expected.view(torch.uint8))


@pytest.mark.parametrize("before", [None, "trn2"])
def test_environment_is_restored(before, monkeypatch):
    if before is None:
        monkeypatch.delenv(TARGET_VARIABLE, raising=False)
    else:
        monkeypatch.setenv(TARGET_VARIABLE, before)
    adaln_modulate(**arguments())
    assert os.environ.get(TARGET_VARIABLE) == before


@pytest.mark.parametrize("target", ["trn2", "trn3"])
def test_the_simulator_is_told_the_target(target, monkeypatch):
    simulate, told = nki.simulate, []

    def tell(kernel):
        told.append(os.environ.get(TARGET_VARIABLE))
        return simulate(kernel)

    monkeypatch.setattr(nki, "simulate", tell)
    adaln_modulate(**arguments(quant=None), target=target)
    assert told == [target]


class DeviceTensor(torch.Tensor):
    """A tensor on a device whose values nobody may look at."""

    @staticmethod
    def __new__(cls, host):
        return torch.Tensor._make_wrapper_subclass(cls, host.shape, dtype=host.dtype, device="lazy")

    def __init__(self, host):
        self.host = host

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        assert str(function) == "aten.detach.default", f"{function} on the device"
        return cls(function(*(arg.host if isinstance(arg, cls) else arg for arg in args), **(kwargs or {})))


def test_other_devices_get_the_kernel_itself(monkeypatch):
    class Launched:
        def __getitem__(self, lnc):
            assert not torch.is_grad_enabled()
            return lambda *operands: (lnc, operands)

    monkeypatch.setattr(launch, "adaln", Launched())
    monkeypatch.setattr(launch, "row_quantise", Launched())
    monkeypatch.setattr(nki, "simulate", lambda _: pytest.fail("simulated"))
    call = arguments()
    on_device = {name: DeviceTensor(value) if torch.is_tensor(value) else value for name, value in call.items()}
    lnc, operands = adaln_modulate(**on_device, lnc=1)
    assert lnc == 1
    assert [tensor.host.shape for tensor in operands[:3]] == [(2, 6, 256), (2, 256), (2, 256)]
    assert operands[3:] == (dataclasses.replace(CASE, lnc=1).plan().config, True)
    lnc, operands = row_quantize_packed(on_device["x"])
    assert lnc == 2
    assert operands[1] == dataclasses.replace(CASE, modulation=NONE).plan().config
    with pytest.raises(ValueError, match="scale is on cpu; accepted: lazy, where x is"):
        adaln_modulate(**{**on_device, "scale": call["scale"]})


INF, NAN = float("inf"), float("nan")
X = torch.zeros(2, 6, 256)
JAGGED = torch.nested.nested_tensor([torch.ones(256)], layout=torch.jagged)
NESTED = torch.nested.nested_tensor([torch.ones(6, 256)] * 2)
NEGATED = torch.ones(2, 6, 256, dtype=torch.complex64).conj().imag


def damaged(name, index, value):
    tensor = arguments()[name].clone()
    tensor[index] = value
    return {name: tensor}


EITHER = [
    ({"target": "trn4"}, ValueError, "target must be 'trn2' or 'trn3', got 'trn4'"),
    ({"target": None}, ValueError, "target must be 'trn2' or 'trn3', got None"),
    ({"target": "trn2", "x": None}, ValueError, "target is 'trn2'; accepted for quantised rows: 'trn3'"),
    ({"lnc": 0}, ValueError, "lnc is 0; accepted: 1 or 2"),
    ({"lnc": 3}, ValueError, "lnc is 3; accepted: 1 or 2"),
    ({"lnc": "2"}, TypeError, "lnc must be an integer, got '2'"),
    ({"x": None}, TypeError, r"x is a NoneType; accepted: a torch tensor \[B, S, H\] torch.bfloat16 or torch.float32"),
    ({"x": X.numpy()}, TypeError, "x is a ndarray; accepted: a torch tensor"),
    ({"x": X.half()}, TypeError, "x is torch.float16; accepted"),
    ({"x": X.to(torch.float8_e4m3fn)}, TypeError, "x is torch.float8_e4m3fn; accepted"),
    ({"x": X[0]}, ValueError, r"x is \[6, 256\]; accepted: \[B, S, H\]"),
    ({"x": X[:, :0]}, ValueError, r"x is \[2, 0, 256\], which is empty; accepted: \[B, S, H\], none of them 0"),
    ({"x": X[..., :255]}, ValueError, r"x is \[2, 6, 255\]; accepted: \[B, S, H\], H a multiple of 4"),
    (
        {"x": X[:, :5]},
        ValueError,
        r"x is \[2, 5, 256\], \[B, S, H\]: seqlen is 5 on 2 cores; accepted: a multiple of 2",
    ),
    ({"x": X.to("meta")}, ValueError, "x is on device meta and has no values"),
    ({"x": X.to_sparse()}, TypeError, "x is torch.sparse_coo; accepted: a strided tensor"),
    ({"x": NESTED}, TypeError, "x is nested; accepted: a strided tensor"),
    ({"x": NEGATED}, ValueError, r"x is a negated view; accepted: its resolve_neg\(\)"),
    *(
        (damaged("x", (1, 4, 9), value), ValueError, rf"x has {value} at \[1, 4, 9\]; accepted: finite values")
        for value in (NAN, INF, -INF)
    ),
]
MODULATION = [
    ({"quant": "block"}, ValueError, "quant is 'block'; accepted: 'row' or None"),
    ({"quant": True}, ValueError, "quant is True; accepted: 'row' or None"),
    ({"scale": None}, TypeError, "scale is a NoneType; accepted: a torch tensor"),
    ({"scale": torch.zeros(2, 256).double()}, TypeError, "scale is torch.float64; accepted"),
    (
        {"scale": torch.zeros(2, 255)},
        ValueError,
        r"scale is \[2, 255\]; accepted: \[2, 256\] for a vector per batch or \[2, 6, 256\] for one per token",
    ),
    (
        {"scale": torch.zeros(2, 1, 256)},
        ValueError,
        r"scale is \[2, 1, 256\]; accepted: \[2, 256\] for a vector per batch",
    ),
    ({"scale": torch.zeros(256)}, ValueError, r"scale is \[256\]; accepted"),
    ({"shift": torch.zeros(1, 256)}, ValueError, r"shift is \[1, 256\]; accepted: \[2, 256\]"),
    ({"shift": torch.zeros(2, 6, 256)}, ValueError, r"shift is \[2, 6, 256\]; accepted: \[2, 256\], as scale is"),
    (
        {"shift": torch.zeros(2, 256).to(BF16)},
        TypeError,
        "shift is torch.bfloat16; accepted: torch.float32, as scale is",
    ),
    ({"shift": torch.zeros(2, 256, device="meta")}, ValueError, "shift is on meta; accepted: cpu, where x is"),
    ({"shift": JAGGED}, TypeError, "shift is nested; accepted: a strided tensor"),
    (damaged("scale", (1, 3), NAN), ValueError, r"scale has nan at \[1, 3\]; accepted: finite values"),
    (damaged("shift", (0, 255), -INF), ValueError, r"shift has -inf at \[0, 255\]; accepted: finite values"),
    (
        damaged("shift", (0, 2), 2.0**49),
        ValueError,
        r"shift has 5.6\d*e?\d* at \[0, 2\]|shift has 562949953421312.0 at",
    ),
    (
        damaged("x", (0, 1, 2), -(2.0**50)),
        ValueError,
        r"x has -1125899906842624.0 at .*; accepted: magnitudes up to 2.815",
    ),
    ({"eps": 0.0}, ValueError, r"eps is 0.0; accepted: a number from 2\*\*-87 to 2\*\*96"),
    ({"eps": -1e-6}, ValueError, "eps is -1e-06; accepted"),
    ({"eps": NAN}, ValueError, "eps is nan; accepted"),
    ({"eps": 1e-30}, ValueError, "eps is 1e-30; accepted"),
    ({"eps": math.nextafter(2.0**-87, 0)}, ValueError, "eps is 6.46.*e-27; accepted"),
    ({"eps": math.nextafter(2.0**96, INF)}, ValueError, r"eps is 7.92.*e\+28; accepted"),
    ({"eps": 10**400}, ValueError, "eps is an integer of 1329 bits; accepted"),
    ({"eps": "1e-6"}, TypeError, "eps is '1e-6'; accepted: a number"),
    ({"eps": True}, TypeError, "eps is True; accepted: a number"),
]


class NeverLaunched:
    def __getitem__(self, lnc):
        pytest.fail("launched")


@pytest.mark.parametrize(("changes", "error", "message"), [*EITHER, *MODULATION])
def test_refused_by_name_before_any_launch(changes, error, message, monkeypatch):
    monkeypatch.setattr(launch, "adaln", NeverLaunched())
    environment = dict(os.environ)
    with pytest.raises(error, match=f"^{message}") as refusal:
        adaln_modulate(**arguments(**changes))
    assert type(refusal.value) is error
    assert dict(os.environ) == environment


@pytest.mark.parametrize(("changes", "error", "message"), EITHER)
def test_quantisation_refuses_the_same(changes, error, message, monkeypatch):
    monkeypatch.setattr(launch, "row_quantise", NeverLaunched())
    with pytest.raises(error, match=f"^{message}"):
        row_quantize_packed(**{"x": arguments()["x"], **changes})


def test_quantisation_takes_what_is_too_large_to_normalise():
    x = torch.full((1, 2, 256), 3e38)
    assert torch.equal(row_quantize_packed(x).view(torch.uint8), row_mx.row_quantise_packed(x).view(torch.uint8))


@pytest.mark.parametrize("call", [lambda x: adaln_modulate(x, x[:, 0], x[:, 0]), row_quantize_packed])
def test_too_wide_rows_are_refused_with_their_budget(call):
    with pytest.raises(ValueError, match=r"^x of H = 80000: SBUF of trn3: .* needs [\d,]+ B per partition"):
        call(torch.zeros(1, 2, 80_000))

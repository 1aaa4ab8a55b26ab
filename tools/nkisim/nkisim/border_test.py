"""Tests of arguments and outputs: what the caller's arrays hold after a run, and after a failed one."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import nki
import nki.isa
import nki.language
from nkisim import Options, run, run_ranks
from nkisim.errors import DtypeError, LaunchError, OutputNotWrittenError, ShapeError

nisa: Any = nki.isa
nl: Any = nki.language


def doubled(x):
    """A new tensor with twice the values of x."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(tile, x)
    nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)
    nisa.dma_copy(out, tile)
    return out


def double_in_place(x):
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(tile, x)
    nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)
    nisa.dma_copy(x, tile)
    return x


def numbers(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


def test_arguments_that_are_only_read_are_not_copied() -> None:
    seen = []

    def kernel(x):
        seen.append(np.shares_memory(x.array(), given))
        return doubled(x)

    given = numbers(4, 6)
    before = given.copy()
    outputs = run(kernel, given).outputs
    assert seen == [True]
    assert (given == before).all()
    np.testing.assert_array_equal(outputs, 2 * before)


@pytest.mark.parametrize("order", ["C", "F", "strided"])
def test_an_argument_is_written_in_place_whatever_its_layout(order: str) -> None:
    values = numbers(4, 6)
    if order == "strided":
        around = np.zeros((8, 18), np.float32)
        given = around[::2, 1::3]
        given[...] = values
    else:
        given = np.array(values, order=order)  # type: ignore[call-overload]
    outputs = run(double_in_place, given).outputs
    assert outputs is given
    np.testing.assert_array_equal(given, 2 * values)
    if order == "strided":
        assert not around[1::2].any()
        assert not around[:, 0::3].any()


def test_a_torch_argument_is_written_in_place() -> None:
    base = torch.from_numpy(numbers(6, 4)).to(torch.bfloat16)
    given = base.T
    expected = (given.float() * 2).to(torch.bfloat16)
    assert run(double_in_place, given).outputs is given
    assert torch.equal(given, expected)
    assert torch.equal(base, expected.T)


def test_a_failed_run_leaves_arguments_untouched() -> None:
    def kernel(x, y):
        double_in_place(x)
        nisa.dma_copy(y, x[0:2])

    x, y = numbers(4, 6), torch.ones(4, 6)
    before = x.copy()
    with pytest.raises(ShapeError):
        run(kernel, x, y)
    assert (x == before).all()
    assert (y == 1).all()


def test_a_kernels_own_error_leaves_arguments_untouched() -> None:
    def kernel(x):
        double_in_place(x)
        raise KeyError("the kernel's own")

    x = numbers(4, 6)
    before = x.copy()
    with pytest.raises(KeyError, match="the kernel's own"):
        run(kernel, x)
    assert (x == before).all()


def test_one_array_given_twice_is_one_tensor() -> None:
    def kernel(x, y):
        assert x is y
        return double_in_place(x)

    x = numbers(4, 6)
    before = x.copy()
    assert run(kernel, x, x).outputs is x
    np.testing.assert_array_equal(x, 2 * before)


def test_arrays_that_share_bytes_may_be_read_but_not_written() -> None:
    def reads(x, y):
        return doubled(x), doubled(y)

    def writes(x, y):
        double_in_place(x)
        return doubled(y)

    base = numbers(6, 4)
    first, second = run(reads, base[:4], base[2:]).outputs
    np.testing.assert_array_equal(first, 2 * base[:4])
    np.testing.assert_array_equal(second, 2 * base[2:])
    before = base.copy()
    with pytest.raises(LaunchError, match="x shares memory with argument y"):
        run(writes, base[:4], base[2:])
    assert (base == before).all()
    run(writes, base[:3], base[3:])
    np.testing.assert_array_equal(base[:3], 2 * before[:3])
    with pytest.raises(LaunchError, match="x shares memory with argument y"):
        run(writes, torch.from_numpy(base)[:4], torch.from_numpy(base)[2:])


def test_a_read_only_array_may_be_read_but_not_written() -> None:
    given = numbers(4, 6)
    given.setflags(write=False)
    np.testing.assert_array_equal(run(doubled, given).outputs, 2 * given)
    with pytest.raises(LaunchError, match="argument x is read-only"):
        run(double_in_place, given)
    repeated = torch.ones(4, 1).expand(4, 6)
    assert (run(doubled, repeated).outputs == 2).all()
    with pytest.raises(LaunchError, match="argument x is read-only"):
        run(double_in_place, repeated)


def test_a_parameter_is_written_without_a_gradient() -> None:
    given = torch.nn.Parameter(torch.ones(4, 6))
    run(double_in_place, given)
    assert (given.detach() == 2).all()


def test_arrays_in_containers() -> None:
    def kernel(pair, named, *rest, scale, **more):
        assert isinstance(pair, tuple)
        assert isinstance(named["list"], list)
        assert (scale, more["text"]) == (3, "a")
        tensors = [*pair, *named["list"], named["x"], *rest, more["last"]]
        for tensor in tensors:
            double_in_place(tensor)
        return {"all": [tensors[0], (tensors[1],)], "count": len(tensors)}

    arrays = [numbers(4, n + 1) for n in range(6)]
    before = [a.copy() for a in arrays]
    named = {"list": [arrays[2]], "x": arrays[3]}
    outputs = run(kernel, (arrays[0], arrays[1]), named, arrays[4], scale=3, text="a", last=arrays[5]).outputs
    assert outputs["all"][0] is arrays[0]
    assert outputs["all"][1][0] is arrays[1]
    assert outputs["count"] == 6
    for array, old in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array, 2 * old)


def test_outputs_are_torch_where_an_argument_is() -> None:
    def kernel(x, y):
        return doubled(x), doubled(y)

    first, second = run(kernel, numbers(4, 6), torch.ones(4, 6, dtype=torch.float8_e4m3fn)).outputs
    assert isinstance(first, torch.Tensor)
    assert second.dtype is torch.float8_e4m3fn
    assert (second.float() == 2).all()
    assert isinstance(run(doubled, numbers(4, 6)).outputs, np.ndarray)


def test_an_output_is_the_callers_own() -> None:
    def kernel(x):
        kept.append(doubled(x))
        return kept[0][1:3]

    kept: list[Any] = []
    given = numbers(4, 6)
    output = run(kernel, given).outputs
    assert output.flags.c_contiguous
    assert not np.shares_memory(output, kept[0].array())
    np.testing.assert_array_equal(output, 2 * given[1:3])


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float16", "int8", "uint16", "bool"])
def test_numpy_and_torch_arguments_of_a_type_hold_the_same_bits(dtype: str) -> None:
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(out, x)
        return out

    storage = np.dtype(getattr(ml_dtypes, dtype, dtype))
    raw = np.random.default_rng(1).integers(0, 2 if dtype == "bool" else 120, (4, 6, storage.itemsize), np.uint8)
    as_numpy = raw.view(storage)[..., 0]
    as_torch = torch.from_numpy(raw).view(getattr(torch, dtype))[..., 0]
    out_numpy, out_torch = run(kernel, as_numpy).outputs, run(kernel, as_torch).outputs
    assert out_numpy.dtype == storage
    assert out_numpy.tobytes() == out_torch.view(torch.uint8).numpy().tobytes() == as_numpy.tobytes()


def test_meta_tensors_in_a_timing_only_run() -> None:
    given = torch.empty(4, 6, dtype=torch.bfloat16, device="meta")
    finished = run(doubled, given, options=Options(numerics=False))
    assert finished.outputs is None
    assert [r.op for r in finished.cores[0].stream] == ["dma_copy", "tensor_scalar", "dma_copy"]
    with pytest.raises(LaunchError, match="argument x: a tensor on meta; accepted: cpu"):
        run(doubled, given)


def test_faults_of_arguments_name_them() -> None:
    with pytest.raises(DtypeError, match="argument x: dtype float64"):
        run(doubled, np.zeros((4, 6)))
    with pytest.raises(DtypeError, match=r"argument x\[1\]: dtype complex64"):
        run(lambda x: None, [1, np.zeros((4, 6), np.complex64)])
    with pytest.raises(ShapeError, match=r"argument x: shape \(4, 0\)"):
        run(doubled, np.zeros((4, 0), np.float32))
    with pytest.raises(ShapeError, match=r"argument x: shape \(\)"):
        run(doubled, np.zeros((), np.float32))
    with pytest.raises(LaunchError, match="missing a required argument: 'x'"):
        run(doubled)
    with pytest.raises(LaunchError, match="unexpected keyword argument 'y'"):
        run(doubled, numbers(4, 6), y=1)


def test_outputs_have_to_be_written_and_lie_in_hbm() -> None:
    def unwritten(x):
        out = nl.ndarray((4, 6), nl.float32, buffer=nl.shared_hbm, name="out")
        nisa.dma_copy(out[0:3], x[0:3])
        return out

    def on_chip(x):
        tile = nl.ndarray((4, 6), nl.float32, name="tile")
        nisa.dma_copy(tile, x)
        return [tile]

    with pytest.raises(OutputNotWrittenError, match=r"output out \[4, 6\]: element \[3, 0\] was never written"):
        run(unwritten, numbers(4, 6))
    with pytest.raises(LaunchError, match="returns tile, which lies in sbuf; accepted: HBM"):
        run(on_chip, numbers(4, 6))


def test_ranks_may_share_what_none_of_them_writes() -> None:
    shared, own = numbers(4, 6), [numbers(4, 6), numbers(4, 6) + 1]
    before = [o.copy() for o in own]

    def kernel(x, w):
        double_in_place(x)
        return doubled(w)

    finished = run_ranks(kernel, [(own[0], shared), (own[1], shared)])
    for rank in range(2):
        np.testing.assert_array_equal(own[rank], 2 * before[rank])
        np.testing.assert_array_equal(finished[rank].outputs, 2 * shared)
    kept = own[0].copy()
    with pytest.raises(LaunchError, match="one array on ranks 0 and 1"):
        run_ranks(kernel, [(own[0], shared), (own[0], shared)])
    assert (own[0] == kept).all()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (np.ma.masked_array(np.ones((4, 6), np.float32), mask=True), "a masked array; accepted: a plain one"),
        (torch.eye(4).to_sparse(), "a tensor of layout torch.sparse_coo; accepted: a dense one"),
        (torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)]), "a nested tensor; accepted: a dense one"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_arguments_of_which_not_all_is_one_run_of_memory(given: Any, words: str) -> None:
    with pytest.raises(LaunchError, match=f"argument x: {words}"):
        run(doubled, given)


def test_torch_tensors_of_other_classes_and_negated_views() -> None:
    class Named(torch.Tensor):
        pass

    imaginary = torch.complex(torch.ones(4, 6), torch.ones(4, 6)).conj().imag
    assert imaginary.is_neg()
    for given in (torch.ones(4, 6).as_subclass(Named), torch.nn.Parameter(torch.ones(4, 6)), imaginary):
        expected = 2 * given.detach().clone().resolve_neg()
        np.testing.assert_array_equal(run(doubled, given).outputs.numpy(), expected.numpy())


@pytest.mark.parametrize(
    "options", [{"numerics": "yes"}, {"precise": 2}, {"decode_cache_bytes": "1"}, {"rank_timeout_seconds": None}]
)
def test_options_of_a_wrong_type_are_refused_by_name(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises((TypeError, ValueError), match=f"{name} .*; accepted: "):
        Options(**options)


@pytest.mark.parametrize(
    "calculate", [lambda x: x + 1, lambda x: 2.0 * x, lambda x: np.float32(1) - x, lambda x: -x, lambda x: x < x]
)
def test_tensors_take_no_part_in_python_arithmetic(calculate: Any) -> None:
    with pytest.raises(DtypeError, match="Python arithmetic with x; accepted: instructions"):
        run(calculate, numbers(4, 6))


def test_tensors_compare_with_none_as_python_says() -> None:
    """Kernels ask so whether an argument was given: the device's compiler has no `is`."""
    answers: list[Any] = []

    def asked(x, missing):
        for tensor in (x, x[0:2, :], nl.ndarray((4, 6), nl.bfloat16, buffer=nl.psum)):
            answers.extend([tensor == None, tensor != None])  # noqa: E711
        answers.extend([missing == None, missing != None])  # noqa: E711
        return doubled(x)

    run(asked, numbers(4, 6), None)
    assert answers == [False, True] * 3 + [True, False]
    assert {type(answer) for answer in answers} == {bool}

"""nc_matmul against numpy in float64, and each of its rules by a pair of kernels."""

import ml_dtypes
import numpy as np
import pytest

import nki.isa as nisa
import nki.language as nl
from nkisim import Options, run
from nkisim.dtypes import as_dtype
from nkisim.errors import (
    AccumulationError,
    ArgumentError,
    DtypeError,
    NotSimulatedError,
    PartitionError,
    ShapeError,
    TargetError,
    UninitializedReadError,
    WrongBufferError,
)

_E4M3, _E4M3FN, _E5M2 = ml_dtypes.float8_e4m3, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
_BF16 = ml_dtypes.bfloat16
double_row = nisa.matmul_perf_mode.double_row


def _random(shape, dtype=np.float32, seed=0):
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(dtype)


def _load(array, dtype=None):
    tile = nl.ndarray(array.shape, dtype=dtype or array.dtype, buffer=nl.sbuf)
    nisa.dma_copy(tile, array)
    return tile


def _out(psum):
    sbuf = nl.ndarray(psum.shape, dtype=psum.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(sbuf, psum)
    hbm = nl.ndarray(psum.shape, dtype=psum.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(hbm, sbuf)
    return hbm


def _simulate(kernel, *arrays, target="trn3", **kwargs):
    return run(kernel, *arrays, options=Options(target=target), **kwargs).outputs


def _one(a, b, dst=nl.float32, dst_shape=None, **kwargs):
    """One product of two operands as they come."""
    left, right = _load(a), _load(b)
    shape = dst_shape or (left.shape[-1], right.shape[-1])
    psum = nl.ndarray(shape, dtype=dst, buffer=nl.psum)
    nisa.nc_matmul(psum, left, right, **kwargs)
    return _out(psum)


def _exact(a, b):
    return a.astype(np.float64).T @ b.astype(np.float64)


_PAIRS = [
    (np.float32, np.float32),
    (_BF16, _BF16),
    (np.float16, _BF16),
    (_E4M3, _E4M3),
    (_E4M3, _E5M2),
    (_E4M3FN, _E5M2),
    (_E4M3FN, np.float16),
]


@pytest.mark.parametrize(("left", "right"), _PAIRS)
@pytest.mark.parametrize(("partitions", "rows", "columns"), [(128, 128, 512), (1, 1, 1), (77, 35, 129)])
def test_product_of_every_pair_of_types(left, right, partitions, rows, columns):
    a, b = _random((partitions, rows), left), _random((partitions, columns), right, 1)
    got = _simulate(_one, a, b)
    bound = np.abs(a).astype(np.float64).T @ np.abs(b).astype(np.float64) * partitions * 2.0**-24
    assert (np.abs(got - _exact(a, b)) <= bound).all()


def test_small_integers_multiply_exactly():
    random = np.random.default_rng(1)
    a, b = random.integers(-8, 9, (128, 64)), random.integers(-8, 9, (128, 300))
    for dtype in (np.float32, np.float16, _BF16, _E4M3, _E4M3FN):
        got = _simulate(_one, a.astype(dtype), b.astype(dtype))
        np.testing.assert_array_equal(got, a.T @ b)


def test_strided_and_offset_views_and_several_free_dimensions():
    a, b = _random((128, 6, 20)), _random((128, 8, 40), seed=1)

    def kernel(a, b):
        left, right = _load(a), _load(b)
        psum = nl.ndarray((64, 2, 3, 20), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(psum[:40, 1], left[32:64, 1:6:2, 2:18:2][:, :2], right[32:64, 2:5, ::2][:, :, :20])
        nisa.nc_matmul(psum[:16, 0], left[32:64, 1:3, 2:18:2], right[32:64, 2:5, ::2])
        return _out(psum[:16])

    with pytest.raises(ShapeError, match=r"dst \[40, 3, 20\]; accepted: \(16, 60\)"):
        _simulate(kernel, a, b)

    def right_kernel(a, b):
        left, right = _load(a), _load(b)
        psum = nl.ndarray((64, 2, 3, 20), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(psum[32:48, 1], left[32:64, 1:5:2, 2:18:2], right[32:64, 2:5, ::2])
        return _out(psum[32:48, 1])

    expected = _exact(a[32:64, 1:5:2, 2:18:2].reshape(32, -1), b[32:64, 2:5, ::2].reshape(32, -1))
    np.testing.assert_allclose(_simulate(right_kernel, a, b).reshape(16, 60), expected, rtol=1e-5, atol=1e-5)


def test_tf32_operands_are_rounded_to_10_bits():
    a, b = _random((64, 16)), _random((64, 32), seed=1)

    def kernel(a, b):
        left, right = _load(a), _load(b)
        rounded = nl.ndarray(left.shape, dtype=nl.tfloat32, buffer=nl.sbuf)
        nisa.tensor_copy(rounded, left)
        psum = nl.ndarray((16, 32), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(psum, rounded, right)
        return _out(psum)

    unit = 2.0 ** (np.floor(np.log2(np.abs(a.astype(np.float64)))) - 10)
    rounded = np.round(a / unit) * unit
    np.testing.assert_allclose(_simulate(kernel, a, b), _exact(rounded, b), rtol=1e-5, atol=1e-5)


class TestAccumulation:
    """PSUM adds element by element."""

    def _twice(self, flags, dtype=nl.float32, target="trn3"):
        a, b = _random((128, 32)), _random((128, 64), seed=1)

        def kernel(a, b):
            left, right = _load(a), _load(b)
            psum = nl.ndarray((32, 64), dtype=dtype, buffer=nl.psum)
            for flag in flags:
                nisa.nc_matmul(psum, left, right, accumulate=flag)
            return _out(psum)

        return np.asarray(_simulate(kernel, a, b, target=target), np.float64) / _exact(a, b)

    @pytest.mark.parametrize(
        ("flags", "times"),
        [
            ((None,), 1),
            ((None, None), 2),
            ((False, True, True), 3),
            ((False, None), 2),
            ((None, False), 1),
            ((False, True, False), 1),
            ((False, np.False_, np.True_), 2),
            ((0, 1, 0), 1),
        ],
    )
    @pytest.mark.parametrize("target", ["trn2", "trn3"])
    def test_flags(self, flags, times, target):
        np.testing.assert_allclose(self._twice(flags, target=target), times, rtol=1e-3)

    def test_onto_a_bank_never_started(self):
        with pytest.raises(AccumulationError, match=r"nc_matmul: accumulate=True onto psum_2 .*nothing has written"):
            self._twice((True,))

    def test_flag_of_another_kind(self):
        with pytest.raises(ArgumentError, match=r"accumulate 'yes'; accepted: True, False or None"):
            self._twice(("yes",))

    def test_onto_a_region_started_in_part(self):
        a, b = _random((32, 16)), _random((32, 64), seed=1)

        def kernel(a, b, second):
            left, right = _load(a), _load(b)
            psum = nl.ndarray((16, 64), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_matmul(psum[:, :32], left, right[:, :32])
            if second:
                nisa.nc_matmul(psum[:, 32:], left, right[:, 32:])
            nisa.nc_matmul(psum, left, right)
            return _out(psum)

        np.testing.assert_allclose(_simulate(kernel, a, b, True), 2 * _exact(a, b), rtol=1e-4, atol=1e-5)
        with pytest.raises(AccumulationError, match=r"accumulate=None onto psum_2 .*part of which nothing has written"):
            _simulate(kernel, a, b, False)

    def test_groups_in_one_bank_are_independent_and_may_be_read_in_between(self):
        a, b = _random((32, 16)), _random((32, 64), seed=1)

        def kernel(a, b):
            left, right = _load(a), _load(b)
            psum = nl.ndarray((16, 64), dtype=nl.float32, buffer=nl.psum)
            for step in range(2):
                for half in (slice(0, 32), slice(32, 64)):
                    nisa.nc_matmul(psum[:, half], left, right[:, half], accumulate=step > 0)
                if not step:
                    first = _out(psum)
            return first, _out(psum)

        first, second = _simulate(kernel, a, b)
        np.testing.assert_array_equal(2 * first, second)

    @pytest.mark.parametrize("flag", [True, None])
    def test_onto_what_another_engine_wrote(self, flag):
        a, b = _random((32, 16)), _random((32, 64), seed=1)

        def kernel(a, b):
            left, right = _load(a), _load(b)
            psum = nl.ndarray((16, 64), dtype=nl.float32, buffer=nl.psum)
            nisa.memset(psum, 3.0)
            nisa.nc_matmul(psum, left, right, accumulate=flag)
            return _out(psum)

        np.testing.assert_allclose(_simulate(kernel, a, b), 3 + _exact(a, b), rtol=1e-4, atol=1e-5)
        with pytest.raises(AccumulationError, match=r"an engine other than the Tensor Engine wrote.*on trn2"):
            _simulate(kernel, a, b, target="trn2")

    @pytest.mark.parametrize("target", ["trn2", "trn3"])
    def test_zeros_by_another_engine_start_a_group(self, target):
        a, b = _random((32, 16)), _random((32, 64), seed=1)

        def kernel(a, b, accumulate):
            left, right = _load(a), _load(b)
            psum = nl.ndarray((16, 64), dtype=nl.float32, buffer=nl.psum)
            nisa.memset(psum, 0.0)
            nisa.nc_matmul(psum, left, right, accumulate=accumulate)
            nisa.nc_matmul(psum, left, right)
            return _out(psum)

        np.testing.assert_allclose(_simulate(kernel, a, b, None, target=target), 2 * _exact(a, b), rtol=1e-4, atol=1e-5)
        if target == "trn2":
            with pytest.raises(AccumulationError, match=r"accumulate=True.*other than the Tensor Engine wrote"):
                _simulate(kernel, a, b, True, target=target)

    def test_an_overwriting_product_starts_a_group_again_on_trn2(self):
        a, b = _random((32, 16)), _random((32, 64), seed=1)

        def kernel(a, b):
            left, right = _load(a), _load(b)
            psum = nl.ndarray((16, 64), dtype=nl.float32, buffer=nl.psum)
            nisa.memset(psum, 3.0)
            nisa.nc_matmul(psum, left, right, accumulate=False)
            nisa.nc_matmul(psum, left, right, accumulate=True)
            return _out(psum)

        np.testing.assert_allclose(_simulate(kernel, a, b, target="trn2"), 2 * _exact(a, b), rtol=1e-4, atol=1e-5)

    def test_bf16_rounds_once_per_product(self):
        random = np.random.default_rng(3)
        a, b = random.integers(-8, 9, (3, 128, 32)), random.integers(-8, 9, (3, 128, 64))

        def kernel(a, b):
            psum = nl.ndarray((32, 64), dtype=nl.bfloat16, buffer=nl.psum)
            for step in range(3):
                nisa.nc_matmul(psum, _load(a[step]), _load(b[step]))
            return _out(psum)

        expected = np.zeros((32, 64), _BF16)
        for step in range(3):
            expected = (expected.astype(np.float32) + (a[step].T @ b[step]).astype(np.float32)).astype(_BF16)
        got = _simulate(kernel, a.astype(_BF16), b.astype(_BF16))
        np.testing.assert_array_equal(got, expected)
        assert (expected.astype(np.float32) != sum(a[i].T @ b[i] for i in range(3)).astype(_BF16)).any()


class TestDoubleRow:
    """fp8 at twice the contraction."""

    @pytest.mark.parametrize("target", ["trn2", "trn3"])
    @pytest.mark.parametrize("mode", [double_row, "double_row"])
    def test_the_first_free_dimension_contracts(self, target, mode):
        a, b = _random((100, 2, 48), _E4M3), _random((100, 2, 200), _E5M2, 1)
        got = _simulate(_one, a, b, perf_mode=mode, target=target)
        expected = sum(_exact(a[:, half], b[:, half]) for half in range(2))
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)

    def test_operands_are_not_mixed_up_with_those_of_a_plain_product(self):
        a, b = _random((32, 2, 4), _E4M3), _random((32, 2, 8), _E4M3, 1)

        def kernel(a, b):
            left, right = _load(a), _load(b)
            plain = nl.ndarray((8, 16), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_matmul(plain, left, right)
            double = nl.ndarray((4, 8), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_matmul(double, left, right, perf_mode=double_row)
            return _out(plain), _out(double)

        plain, double = _simulate(kernel, a, b)
        np.testing.assert_allclose(plain, _exact(a.reshape(32, 8), b.reshape(32, 16)), rtol=1e-5, atol=1e-5)
        expected = sum(_exact(a[:, half], b[:, half]) for half in range(2))
        np.testing.assert_allclose(double, expected, rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize(
        ("left", "right", "error", "words"),
        [
            (((64, 2, 8), _BF16), ((64, 2, 8), _E4M3), DtypeError, "stationary is bfloat16 with double_row"),
            (((64, 2, 8), _E4M3), ((64, 16), _E4M3), ShapeError, r"moving \[64, 16\].*\(partitions, 2, columns\)"),
            (((64, 3, 8), _E4M3), ((64, 2, 8), _E4M3), ShapeError, r"stationary \[64, 3, 8\]"),
            (((64, 2, 8), _E4M3), ((64, 2, 8), _E4M3FN), DtypeError, "only one of float8_e4m3, float8_e4m3fn"),
        ],
    )
    def test_faults(self, left, right, error, words):
        with pytest.raises(error, match=words):
            _simulate(_one, _random(*left), _random(*right), perf_mode=double_row, dst_shape=(8, 8))

    def test_no_column_tiling(self):
        a, b = _random((64, 2, 32), _E4M3), _random((64, 2, 32), _E4M3)
        tile = {"tile_position": (0, 0), "perf_mode": double_row}
        _simulate(_one, a, b, tile_size=(64, 128), **tile)
        with pytest.raises(ArgumentError, match=r"no column tiling"):
            _simulate(_one, a, b, tile_size=(64, 32), **tile)

    def test_unknown_mode(self):
        with pytest.raises(ArgumentError, match=r"perf_mode 'fast'; accepted: matmul_perf_mode\.none"):
            _simulate(_one, _random((8, 8)), _random((8, 8)), perf_mode="fast")


class TestTranspose:
    """is_transpose moves bits."""

    @pytest.mark.parametrize("dtype", [np.float32, np.float16, _BF16])
    @pytest.mark.parametrize("target", ["trn2", "trn3"])
    def test_bits_survive_whatever_they_are(self, dtype, target):
        bits = np.random.default_rng(2).integers(0, 256, (100, 60 * np.dtype(dtype).itemsize), dtype=np.uint8)
        a = bits.view(dtype)
        got = _simulate(_one, a, np.eye(100, dtype=dtype), dst=as_dtype(dtype), is_transpose=True, target=target)
        np.testing.assert_array_equal(got.view(np.uint8), np.ascontiguousarray(a.T).view(np.uint8))

    def test_fp8_fills_16_bits(self):
        bits = np.random.default_rng(2).integers(0, 256, (64, 40), dtype=np.uint8)

        def kernel(a, identity):
            left, right = _load(a), _load(identity)
            psum = nl.ndarray((40, 64, 2), dtype=a.dtype, buffer=nl.psum)
            nisa.nc_matmul(psum[:, :, 0], left, right, is_transpose=True)
            return _out(psum)

        got = _simulate(kernel, bits.view(_E4M3), np.eye(64, dtype=_E4M3), target="trn2").view(np.uint8)
        np.testing.assert_array_equal(got[:, :, 0], bits.T)
        assert not got[:, :, 1].any()

    def test_fp8_in_steps_of_one(self):
        with pytest.raises(ShapeError, match=r"steps of 2"):
            _simulate(_one, _random((64, 40), _E4M3), np.eye(64, dtype=_E4M3), dst=nl.float8_e4m3, is_transpose=True)

    def test_dst_of_another_type(self):
        with pytest.raises(DtypeError, match=r"dst is float32, stationary is bfloat16; accepted: the same"):
            _simulate(_one, _random((64, 40), _BF16), np.eye(64, dtype=_BF16), is_transpose=True)

    def test_moving_that_is_no_identity(self):
        with pytest.raises(ShapeError, match=r"moving \[64, 40\].*identity \(64, 64\)"):
            _simulate(_one, _random((64, 40)), _random((64, 40)), is_transpose=True)
        with pytest.raises(NotSimulatedError, match=r"not an identity"):
            _simulate(_one, _random((64, 40)), _random((64, 64)), is_transpose=True)

    def test_with_double_row_or_accumulating(self):
        a, identity = _random((64, 40)), np.eye(64, dtype=np.float32)
        with pytest.raises(ArgumentError, match=r"is_transpose with perf_mode double_row"):
            _simulate(_one, a, identity, is_transpose=True, perf_mode=double_row)
        with pytest.raises(NotSimulatedError, match=r"accumulate=True with is_transpose"):
            _simulate(_one, a, identity, is_transpose=True, accumulate=True)


class TestOneZero:
    """The hints are promises about fp32 operands."""

    def test_kept(self):
        ones = np.random.default_rng(1).integers(0, 2, (64, 16)).astype(np.float32)
        b = _random((64, 32))
        np.testing.assert_allclose(
            _simulate(_one, ones, b, is_stationary_onezero=True), _exact(ones, b), rtol=1e-5, atol=1e-5
        )
        np.testing.assert_allclose(
            _simulate(_one, b, ones, is_moving_onezero=True), _exact(b, ones), rtol=1e-5, atol=1e-5
        )

    def test_broken(self):
        a, b = _random((64, 16)), _random((64, 32))
        for operand in ("stationary", "moving"):
            with pytest.raises(ArgumentError, match=f"is_{operand}_onezero=True, and sbuf_. holds other values"):
                _simulate(_one, a, b, **{f"is_{operand}_onezero": True})

    def test_has_no_meaning_for_other_types(self):
        a, b = _random((64, 16), _BF16), _random((64, 32), _BF16)
        _simulate(_one, a, b, is_stationary_onezero=True, is_moving_onezero=True)


class TestTiling:
    """Tiles of the array: rows are fed by SBUF partitions, columns drain to PSUM partitions."""

    def _tiled(self, position, size, start=0, drain=0, partitions=32, rows=32, target="trn3"):
        a, b = _random((128, 128)), _random((128, 64), seed=1)

        def kernel(a, b):
            left, right = _load(a), _load(b)
            psum = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.psum)
            used = slice(start, start + partitions)
            dst = psum[drain : drain + rows]
            nisa.nc_matmul(dst, left[used, :rows], right[used], tile_position=position, tile_size=size)
            return _out(dst)

        used = slice(start, start + partitions)
        np.testing.assert_allclose(
            _simulate(kernel, a, b, target=target), _exact(a[used, :rows], b[used]), rtol=1e-4, atol=1e-5
        )

    @pytest.mark.parametrize("target", ["trn2", "trn3"])
    def test_tiles(self, target):
        self._tiled((64, 0), (64, 128), start=64, partitions=64, rows=128, target=target)
        self._tiled((96, 0), (32, 128), start=96, target=target)
        self._tiled((0, 64), (128, 32), drain=64, partitions=128, target=target)
        self._tiled([32, 96], [32, 32], start=32, drain=96, target=target)

    @pytest.mark.parametrize(
        ("position", "size", "kwargs", "error", "words"),
        [
            ((0, 0), (), {}, ArgumentError, "accepted: both or neither"),
            ((), (32, 128), {}, ArgumentError, "accepted: both or neither"),
            ((0, 0), (48, 128), {}, ArgumentError, "32 or 64 or 128"),
            ((0, 0), (32, 16), {}, ArgumentError, "32 or 64 or 128"),
            ((32, 0), (64, 128), {"start": 32}, ArgumentError, "multiples of it"),
            ((128, 0), (32, 128), {}, ArgumentError, "below 128"),
            ((0, 16), (32, 32), {}, ArgumentError, "multiples of it"),
            ((0, 0), (32, 128), {"partitions": 64}, ShapeError, "64 partitions and 32 columns; accepted: up to"),
            ((0, 0), (32, 32), {"rows": 64}, ShapeError, "32 partitions and 64 columns; accepted: up to"),
            ((32, 0), (32, 128), {}, PartitionError, "stationary starts at partition 0 .*accepted: partition 32"),
            ((0, 32), (32, 32), {}, PartitionError, "dst starts at partition 0 .*accepted: partition 32"),
            (("a", 0), (32, 32), {}, ArgumentError, "tile_position .*accepted: a pair of integers"),
            ((0, 0, 0), (32, 32), {}, ArgumentError, "tile_position .*accepted: a pair of integers"),
        ],
    )
    def test_faults(self, position, size, kwargs, error, words):
        with pytest.raises(error, match=words):
            self._tiled(position, size, **kwargs)


class TestOperands:
    """Memories, types and sizes."""

    def test_dst_in_sbuf_names_op_operand_buffer_and_the_one_needed(self):
        def kernel(a, b, buffer):
            left, right = _load(a), _load(b)
            dst = nl.ndarray((16, 32), dtype=nl.float32, buffer=buffer)
            nisa.nc_matmul(dst, left, right)
            return _out(dst)

        a, b = _random((64, 16)), _random((64, 32))
        _simulate(kernel, a, b, nl.psum)
        with pytest.raises(WrongBufferError, match=r"nisa\.nc_matmul: dst sbuf_2 lies in sbuf; accepted: psum"):
            _simulate(kernel, a, b, nl.sbuf)

    @pytest.mark.parametrize("operand", ["stationary", "moving"])
    def test_operand_in_psum(self, operand):
        def kernel(a):
            operands = {"stationary": _load(a), "moving": _load(a)}
            operands[operand] = nl.ndarray(a.shape, dtype=nl.float32, buffer=nl.psum)
            dst = nl.ndarray((16, 16), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_matmul(dst, **operands)
            return _out(dst)

        with pytest.raises(WrongBufferError, match=f"{operand} psum_2 lies in psum; accepted: sbuf"):
            _simulate(kernel, _random((64, 16)))

    @pytest.mark.parametrize("given", [None, np.zeros((4, 4), np.float32), 3])
    def test_operand_that_is_no_tensor(self, given):
        def kernel(a):
            dst = nl.ndarray((16, 16), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_matmul(dst, _load(a), given)

        with pytest.raises(ArgumentError, match=r"(?s)moving is .*; accepted: an NkiTensor"):
            _simulate(kernel, _random((64, 16)))

    def test_uninitialised_operand(self):
        def kernel(a):
            left = _load(a)
            dst = nl.ndarray((16, 16), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_matmul(dst, left, nl.ndarray(a.shape, dtype=nl.float32, buffer=nl.sbuf))

        with pytest.raises(UninitializedReadError, match=r"moving: element \[0, 0\] of this view of sbuf_2"):
            _simulate(kernel, _random((64, 16)))

    @pytest.mark.parametrize(
        ("left", "right", "target", "error", "words"),
        [
            (np.float32, _BF16, "trn3", DtypeError, "float32 and tfloat32 only with each other"),
            (_E5M2, np.float32, "trn3", DtypeError, "float32 and tfloat32 only with each other"),
            (_E4M3, _E4M3FN, "trn3", DtypeError, "only one of float8_e4m3, float8_e4m3fn"),
            (np.int8, np.int8, "trn3", DtypeError, "stationary sbuf_0 is int8; accepted: float8_e4m3"),
            (_E4M3FN, _E4M3FN, "trn2", TargetError, "float8_e4m3fn on trn2; accepted there: float8_e4m3"),
        ],
    )
    def test_pairs_of_types(self, left, right, target, error, words):
        with pytest.raises(error, match=words):
            _simulate(_one, np.ones((8, 8), left), np.ones((8, 8), right), target=target)

    @pytest.mark.parametrize(
        ("dst", "target", "accepted"), [(nl.bfloat16, "trn2", "float32"), (nl.float16, "trn3", "float32, bfloat16")]
    )
    def test_dst_type(self, dst, target, accepted):
        a, b = _random((8, 8)), _random((8, 8))
        _simulate(_one, a, b, target=target)
        with pytest.raises(DtypeError, match=f"dst psum_2 is {dst}; accepted: {accepted}$".replace("$", r"\n")):
            _simulate(_one, a, b, dst=dst, target=target)

    @pytest.mark.parametrize(
        ("left", "right", "dst", "words"),
        [
            ((64, 16), (32, 32), None, "moving has 32 partitions, stationary 64; accepted: the same number"),
            ((64, 130), (64, 32), None, "stationary has 130 columns; accepted: up to 128"),
            ((64, 16), (64, 32), (32, 16), r"dst \[32, 16\]; accepted: \(16, 32\)"),
            ((64, 16), (64, 32), (16, 31), r"dst \[16, 31\]; accepted: \(16, 32\)"),
        ],
    )
    def test_sizes(self, left, right, dst, words):
        with pytest.raises(ShapeError, match=words):
            _simulate(_one, _random(left), _random(right), dst_shape=dst or (128, right[1]))

    def test_operands_that_start_in_different_partitions(self):
        def kernel(a, b, start):
            left, right = _load(a), _load(b)
            dst = nl.ndarray((16, 32), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_matmul(dst, left[32:64], right[start : start + 32])
            return _out(dst)

        a, b = _random((64, 16)), _random((64, 32))
        np.testing.assert_allclose(_simulate(kernel, a, b, 32), _exact(a[32:], b[32:]), rtol=1e-4, atol=1e-5)
        with pytest.raises(PartitionError, match=r"moving starts at partition 0, stationary at 32"):
            _simulate(kernel, a, b, 0)

    def test_broadcast_dst(self):
        def kernel(a, b):
            dst = nl.ndarray((16, 1), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_matmul(dst.broadcast(1, 32), _load(a), _load(b))

        with pytest.raises(ShapeError, match=r"dst psum_0 is a broadcast view"):
            _simulate(kernel, _random((64, 16)), _random((64, 32)))


class TestBanks:
    """A dst lies within one bank on trn2 and may take all of PSUM on trn3."""

    @pytest.mark.parametrize(
        ("target", "dst", "columns", "limit"),
        [
            ("trn2", nl.float32, 512, 512),
            ("trn3", nl.float32, 4096, 4096),
            ("trn3", nl.bfloat16, 8192, 8192),
        ],
    )
    def test_widest_product(self, target, dst, columns, limit):
        a, b = _random((8, 4)), _random((8, columns), seed=1)
        rtol = 1e-4 if dst == nl.float32 else 1e-2
        got = np.asarray(_simulate(_one, a, b, dst=dst, target=target), np.float64)
        np.testing.assert_allclose(got, _exact(a, b), rtol=rtol, atol=1e-4)

        def too_wide(a, b):
            left, right = _load(a), _load(b)
            nisa.nc_matmul(nl.ndarray((4, columns), dtype=dst, buffer=nl.psum), left, right)

        wider = _random((8, columns + 1))
        with pytest.raises(ShapeError, match=f"moving has {columns + 1} columns; accepted: up to {limit} with a {dst}"):
            _simulate(too_wide, a, wider, target=target)

    @pytest.mark.parametrize(("start", "columns", "fits"), [(0, 512, True), (256, 256, True), (256, 300, False)])
    def test_a_bank_is_not_crossed_on_trn2(self, start, columns, fits):
        def kernel(a, b):
            left, right = _load(a), _load(b)
            psum = nl.ndarray((4, 1536), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_matmul(psum[:, 512 + start : 512 + start + columns], left, right)
            return _out(psum[:, 512 + start : 512 + start + columns])

        a, b = _random((8, 4)), _random((8, columns), seed=1)
        np.testing.assert_allclose(_simulate(kernel, a, b), _exact(a, b), rtol=1e-4, atol=1e-5)
        if fits:
            np.testing.assert_allclose(_simulate(kernel, a, b, target="trn2"), _exact(a, b), rtol=1e-4, atol=1e-5)
        else:
            with pytest.raises(ShapeError, match=r"crosses a PSUM bank on trn2.*2048 bytes"):
                _simulate(kernel, a, b, target="trn2")

    @pytest.mark.parametrize(("byte", "fits"), [(2048, True), (1024, True), (1040, False)])
    def test_an_address_counts(self, byte, fits):
        def kernel(a, b):
            left, right = _load(a), _load(b)
            psum = nl.ndarray((4, 256), dtype=nl.float32, buffer=nl.psum, address=(0, byte))
            nisa.nc_matmul(psum, left, right)
            return _out(psum)

        a, b = _random((8, 4)), _random((8, 256), seed=1)
        if fits:
            _simulate(kernel, a, b, target="trn2")
        else:
            with pytest.raises(ShapeError, match=r"crosses a PSUM bank"):
                _simulate(kernel, a, b, target="trn2")


class TestIndirect:
    """Columns chosen by an index (trn3)."""

    def _run(self, operand, dtype=nl.bfloat16, start=0, index_start=0, **kwargs):
        a, b = _random((128, 48), _BF16), _random((128, 40), _BF16, 1)
        chosen = np.random.default_rng(5).permutation(40)[:16].astype(np.uint32)
        # Sixteen partitions hold the values; all groups of sixteen hold the same ones.
        layout = np.tile(chosen.reshape(16, 1), (8, 1))
        used = slice(start, start + 32)

        def kernel(a, b, layout):
            left, right = _load(a, dtype), _load(b, dtype)
            index = _load(layout)[index_start : index_start + 32]
            left, right = left[used], right[used]
            psum = nl.ndarray((32, 40), dtype=nl.float32, buffer=nl.psum)
            if operand == "stationary":
                nisa.nc_matmul(psum[:16], left.indirect(index, 16), right, **kwargs)
                return _out(psum[:16])
            if operand == "moving":
                nisa.nc_matmul(psum[:, :16], left[:, :32], right.indirect(index, 16), **kwargs)
                return _out(psum[:, :16])
            nisa.nc_matmul(psum, left[:, :32], right, accumulate=False)
            nisa.nc_matmul(psum.indirect(index, 16), left[:, :32], right[:, :16], **kwargs)
            return _out(psum)

        got = _simulate(kernel, a.astype(dtype.storage), b.astype(dtype.storage), layout)
        a, b = a[used], b[used]
        if operand == "stationary":
            expected = _exact(a[:, chosen], b)
        elif operand == "moving":
            expected = _exact(a[:, :32], b[:, chosen])
        else:
            expected = _exact(a[:, :32], b)
            add = expected[:, chosen] if kwargs.get("accumulate") else 0
            expected[:, chosen] = add + _exact(a[:, :32], b[:, :16])
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("operand", ["stationary", "moving"])
    @pytest.mark.parametrize("start", [0, 64])
    def test_gather(self, operand, start):
        self._run(operand, start=start, index_start=start)

    def test_gather_with_the_whole_array_as_its_tile(self):
        self._run("moving", tile_position=(0, 0), tile_size=(128, 128))

    @pytest.mark.parametrize("accumulate", [True, False])
    def test_scatter(self, accumulate):
        self._run("dst", accumulate=accumulate)

    @pytest.mark.parametrize("operand", ["stationary", "moving", "dst"])
    def test_tiles(self, operand):
        with pytest.raises(
            ArgumentError, match=r"tile_position \(32, 0\) with an indirect operand; accepted: \(0, 0\)"
        ):
            self._run(operand, start=32, index_start=32, tile_position=(32, 0), tile_size=(32, 128))

    @pytest.mark.parametrize("operand", ["stationary", "moving", "dst"])
    def test_index_on_other_partitions(self, operand):
        with pytest.raises(
            PartitionError, match=rf"the index of {operand} starts at partition 32, .* at 0; accepted: the same"
        ):
            self._run(operand, index_start=32)

    @pytest.mark.parametrize("operand", ["stationary", "moving"])
    def test_types(self, operand):
        with pytest.raises(DtypeError, match=rf"indirect {operand} sbuf_. is float32; accepted: float8_e4m3"):
            self._run(operand, dtype=nl.float32)

    def test_moving_with_is_transpose(self):
        def kernel(a, identity, layout):
            left, right, index = _load(a), _load(identity), _load(layout)
            psum = nl.ndarray((16, 32), dtype=nl.bfloat16, buffer=nl.psum)
            nisa.nc_matmul(psum, left, right.indirect(index, 32), is_transpose=True)

        layout = np.tile(np.arange(32, dtype=np.uint32).reshape(2, 16).T, (2, 1))
        with pytest.raises(ArgumentError, match=r"moving is indirect with is_transpose"):
            _simulate(kernel, _random((32, 16), _BF16), np.eye(32, dtype=_BF16), layout)


def test_an_operand_overwritten_between_two_products_is_read_again():
    a, b = _random((2, 64, 16), _BF16), _random((64, 32), _BF16)

    def kernel(a, b):
        right = _load(b)
        left = nl.ndarray((64, 16), dtype=nl.bfloat16, buffer=nl.sbuf)
        results = []
        for step in range(2):
            nisa.dma_copy(left, a[step])
            psum = nl.ndarray((16, 32), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_matmul(psum, left, right)
            results.append(_out(psum))
        return tuple(results)

    for step, got in enumerate(_simulate(kernel, a, b)):
        np.testing.assert_allclose(got, _exact(a[step], b), rtol=1e-4, atol=1e-4)


def test_timing_only_runs_record_the_same():
    a, b = _random((64, 16)), _random((64, 32))
    records = []
    for numerics in (True, False):
        finished = run(_one, a, b, options=Options(target="trn3", numerics=numerics))
        records.append([(r.op, r.engine, r.detail, r.writes[0].shape) for r in finished.cores[0].stream])
    assert records[0] == records[1]
    assert records[0][2] == ("nc_matmul", nisa.engine.tensor, ("none", None), (16, 32))

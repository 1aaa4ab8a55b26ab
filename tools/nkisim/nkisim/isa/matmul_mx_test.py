"""nc_matmul_mx against a dequantisation written from the layout rules, and each of its rules by a pair of kernels."""

import functools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nki.isa as nisa
import nki.language as nl
from nkisim import Options, run
from nkisim.errors import (
    AccumulationError,
    ArgumentError,
    DtypeError,
    PartitionError,
    ShapeError,
    TargetError,
    UninitializedReadError,
    WrongBufferError,
)

_LANES = {
    nl.float8_e4m3fn_x4: ml_dtypes.float8_e4m3fn,
    nl.float8_e5m2_x4: ml_dtypes.float8_e5m2,
    nl.float4_e2m1fn_x4: ml_dtypes.float4_e2m1fn,
}
_E4M3FN, _E5M2, _FP4 = _LANES


def _elements(kind, shape, seed=0):
    """Random finite elements [partitions, columns, 4] and their packed words as integers."""
    random = np.random.default_rng((seed, *shape))
    lane = _LANES[kind]
    values = random.standard_normal((*shape, 4)).astype(lane)
    bits = values.view(np.uint8).astype(np.uint32)
    width = 4 if kind == _FP4 else 8
    words = np.bitwise_or.reduce([(bits[..., i] & ((1 << width) - 1)) << width * i for i in range(4)])
    return values.astype(np.float64), words.astype(np.uint16 if kind == _FP4 else np.uint32)


def _scales(partitions, columns, seed=0, step=7):
    """One byte per block [partitions / 8, columns]; all exponents of a column differ."""
    rows, free = np.arange(partitions // 8)[:, None], np.arange(columns)
    return ((rows + step * free + seed) % 29 + 112).astype(np.uint8)


def _dequantised(elements, scales):
    factors = np.exp2(np.repeat(scales.astype(np.float64), 8, axis=0) - 127)
    return elements * factors[..., None]


def _expected(left, left_scales, right, right_scales):
    a, b = _dequantised(left, left_scales), _dequantised(right, right_scales)
    return np.einsum("pml,pnl->mn", a, b), np.einsum("pml,pnl->mn", abs(a), abs(b))


def _load(words, kind, start=0):
    tile = nl.ndarray((start + words.shape[0], words.shape[1]), dtype=kind, buffer=nl.sbuf)
    view = tile[start:]
    nisa.dma_copy(view, words.view(kind))
    return view


def _load_scales(scales, start=0, offset=0, dtype=nl.float8_e8m0fnu):
    """Spreads rows of scales over the quadrants, each `offset` partitions in; the rest stays poison."""
    quadrants = scales.shape[0] // 4
    partitions = 4 if quadrants == 1 else 32 * quadrants - offset
    tile = nl.ndarray((start + offset + partitions, scales.shape[1]), dtype=dtype, buffer=nl.sbuf)
    view = tile[start + offset :]
    for quadrant in range(quadrants):
        rows = slice(4 * quadrant, 4 * quadrant + 4)
        nisa.dma_copy(view[32 * quadrant : 32 * quadrant + 4], scales[rows].view(dtype))
    return view


def _out(psum):
    sbuf = nl.ndarray(psum.shape, dtype=psum.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(sbuf, psum)
    hbm = nl.ndarray(psum.shape, dtype=psum.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(hbm, sbuf)
    return hbm


class Case:
    """Random operands of one product, and kernels over them."""

    def __init__(self, kinds=(_E4M3FN, _E4M3FN), partitions=128, rows=64, columns=96):
        self.kinds = kinds
        self.left, self.left_words = _elements(kinds[0], (partitions, rows))
        self.right, self.right_words = _elements(kinds[1], (partitions, columns), 1)
        self.left_scales, self.right_scales = _scales(partitions, rows), _scales(partitions, columns, 3, 5)
        self.shape = (rows, columns)

    def simulate(self, body, target="trn3"):
        """Runs `body(psum, left, right, left_scale, right_scale)` on loaded operands."""
        arrays = (self.left_words, self.right_words, self.left_scales, self.right_scales)
        return run(body, self, *arrays, options=Options(target=target)).outputs

    def check(self, got, times=1, rounding=0.0):
        """`got` is the product: products and sums of fp32 round each step, `rounding` is the result's own."""
        expected, magnitude = _expected(self.left, self.left_scales, self.right, self.right_scales)
        bound = magnitude * times * (len(self.left) * 4 * 2.0**-24 + rounding)
        assert (np.abs(np.asarray(got, np.float64) - times * expected) <= bound).all()


def _kernel(case, left, right, left_scale, right_scale, dst=nl.float32, dst_shape=None, **kwargs):
    psum = nl.ndarray(dst_shape or case.shape, dtype=dst, buffer=nl.psum)
    nisa.nc_matmul_mx(
        psum,
        _load(left, case.kinds[0]),
        _load(right, case.kinds[1]),
        _load_scales(left_scale),
        _load_scales(right_scale),
        **kwargs,
    )
    return _out(psum)


@pytest.mark.parametrize("left", list(_LANES))
@pytest.mark.parametrize("right", list(_LANES))
@pytest.mark.parametrize("partitions", [32, 128])
def test_every_pair_of_types(left, right, partitions):
    case = Case((left, right), partitions)
    case.check(case.simulate(_kernel))


@pytest.mark.parametrize(("partitions", "rows", "columns"), [(32, 2, 1), (64, 128, 512), (96, 6, 33), (128, 128, 7)])
def test_sizes(partitions, rows, columns):
    case = Case((_E5M2, _E4M3FN), partitions, rows, columns)
    case.check(case.simulate(_kernel))


def test_small_integers_multiply_exactly():
    case = Case()
    for name in ("left", "right"):
        values = np.random.default_rng(2).integers(-4, 5, getattr(case, name).shape)
        setattr(case, name, values.astype(np.float64))
        bytes_ = values.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
        setattr(case, f"{name}_words", np.ascontiguousarray(bytes_).view(np.uint32)[..., 0])
        scales = getattr(case, f"{name}_scales")
        setattr(case, f"{name}_scales", (scales % 3 + 126).astype(np.uint8))
    expected, _ = _expected(case.left, case.left_scales, case.right, case.right_scales)
    np.testing.assert_array_equal(case.simulate(_kernel), expected)


def test_swapping_any_two_scales_changes_the_output():
    case = Case(partitions=64, rows=4, columns=6)
    before = case.simulate(_kernel)
    for scales in (case.left_scales, case.right_scales):
        flat = scales.reshape(-1)
        for first in range(0, flat.size, 5):
            for second in range(first + 1, flat.size, 7):
                if flat[first] != flat[second]:
                    flat[[first, second]] = flat[[second, first]]
                    after = case.simulate(_kernel)
                    case.check(after)
                    assert (after != before).any()
                    flat[[first, second]] = flat[[second, first]]


def test_every_scale_byte():
    case = Case(partitions=32, rows=128, columns=4)
    case.left[:], case.left_words[:] = 1, np.full(4, 0x38, np.uint8).view(np.uint32)[0]
    case.right[:], case.right_words[:] = 1, case.left_words[0, 0]
    case.right_scales[:] = 127
    for first in (0, 128):
        codes = np.arange(first, first + 128, dtype=np.uint8)
        case.left_scales[:] = codes
        with np.errstate(over="ignore"):
            expected = (128 * np.exp2(codes.astype(np.float64) - 127)).astype(np.float32)
        expected[codes == 255] = np.nan
        got = case.simulate(_kernel)
        np.testing.assert_array_equal(got, np.repeat(expected[:, None], 4, axis=1))


@pytest.mark.parametrize("dtype", [nl.uint8, nl.float8_e8m0fnu])
def test_scale_types(dtype):
    def kernel(case, left, right, left_scale, right_scale):
        psum = nl.ndarray(case.shape, dtype=nl.float32, buffer=nl.psum)
        scales = [_load_scales(s, dtype=dtype) for s in (left_scale, right_scale)]
        nisa.nc_matmul_mx(psum, _load(left, _E4M3FN), _load(right, _E4M3FN), *scales)
        return _out(psum)

    case = Case()
    case.check(case.simulate(kernel))


@pytest.mark.parametrize("offsets", [(0, 4), (8, 12), (12, 0)])
def test_packed_scales_share_a_tile(offsets):
    def kernel(case, left, right, left_scale, right_scale):
        packed = nl.ndarray((128, 96), dtype=nl.uint8, buffer=nl.sbuf)
        views: Any = []
        for scales, offset in zip((left_scale, right_scale), offsets, strict=True):
            view = packed[offset:, : scales.shape[1]]
            for quadrant in range(4):
                nisa.dma_copy(view[32 * quadrant : 32 * quadrant + 4], scales[4 * quadrant : 4 * quadrant + 4])
            views.append(view)
        psum = nl.ndarray(case.shape, dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul_mx(psum, _load(left, _E4M3FN), _load(right, _E4M3FN), *views)
        return _out(psum)

    case = Case()
    case.check(case.simulate(kernel))


@pytest.mark.parametrize(("start", "partitions"), [(32, 32), (64, 64), (96, 32)])
@pytest.mark.parametrize("tiled", [False, True])
def test_start_partitions_and_row_tiles(start, partitions, tiled):
    def kernel(case, left, right, left_scale, right_scale):
        tile: dict[str, Any] = {"tile_position": (start, 0), "tile_size": (partitions, 128)} if tiled else {}
        psum = nl.ndarray(case.shape, dtype=nl.float32, buffer=nl.psum)
        scales = [_load_scales(s, start, 4) for s in (left_scale, right_scale)]
        nisa.nc_matmul_mx(psum, _load(left, _E4M3FN, start), _load(right, _E4M3FN, start), *scales, **tile)
        return _out(psum)

    case = Case(partitions=partitions)
    case.check(case.simulate(kernel))


def test_strided_operands_of_several_free_dimensions():
    def kernel(case, left, right, left_scale, right_scale):
        a, b = _load(left, _E4M3FN), _load(right, _E4M3FN)
        scales = [_load_scales(s) for s in (left_scale, right_scale)]
        psum = nl.ndarray((16, 3, 8), dtype=nl.float32, buffer=nl.psum)
        b3, b_scale3 = (t.reshape_dim(1, (3, 32))[:, :, 4:20:2] for t in (b, scales[1]))
        nisa.nc_matmul_mx(psum, a[:, 1:33:2], b3, scales[0][:, 1:33:2], b_scale3)
        return _out(psum)

    case = Case()
    got = case.simulate(kernel).reshape(16, 24)
    columns = np.arange(96).reshape(3, 32)[:, 4:20:2].reshape(-1)
    case.left, case.left_scales = case.left[:, 1:33:2], case.left_scales[:, 1:33:2]
    case.right, case.right_scales = case.right[:, columns], case.right_scales[:, columns]
    case.check(got)


class TestResults:
    """fp32 and bf16 in PSUM."""

    @pytest.mark.parametrize(("flags", "times"), [((None, None), 2), ((False, True, True), 3), ((None, False), 1)])
    @pytest.mark.parametrize(("dtype", "rounding"), [(nl.float32, 0.0), (nl.bfloat16, 2.0**-8)])
    def test_accumulation(self, flags, times, dtype, rounding):
        def kernel(case, left, right, left_scale, right_scale):
            operands = (
                _load(left, _E4M3FN),
                _load(right, _E4M3FN),
                _load_scales(left_scale),
                _load_scales(right_scale),
            )
            psum = nl.ndarray(case.shape, dtype=dtype, buffer=nl.psum)
            for flag in flags:
                nisa.nc_matmul_mx(psum, *operands, accumulate=flag)
            return _out(psum)

        case = Case()
        case.check(case.simulate(kernel), times, rounding)

    def test_accumulation_never_started(self):
        with pytest.raises(AccumulationError, match=r"nc_matmul_mx: accumulate=True onto psum_0"):
            Case().simulate(functools.partial(_kernel, accumulate=True))

    @pytest.mark.parametrize(("dtype", "limit"), [(nl.float32, 4096), (nl.bfloat16, 8192)])
    def test_widest(self, dtype, limit):
        case = Case(partitions=32, rows=2, columns=limit)
        case.check(case.simulate(functools.partial(_kernel, dst=dtype)), rounding=2.0**-8)
        case = Case(partitions=32, rows=2, columns=limit + 1)
        with pytest.raises(ShapeError, match=f"moving has {limit + 1} columns; accepted: up to {limit} with a {dtype}"):
            case.simulate(functools.partial(_kernel, dst=dtype, dst_shape=(2, limit)))

    def test_dst_type_and_buffer(self):
        with pytest.raises(DtypeError, match=r"dst psum_0 is float16; accepted: float32, bfloat16"):
            Case().simulate(functools.partial(_kernel, dst=nl.float16))

        def kernel(case, left, right, left_scale, right_scale):
            dst = nl.ndarray(case.shape, dtype=nl.float32, buffer=nl.sbuf)
            scales = (_load_scales(left_scale), _load_scales(right_scale))
            nisa.nc_matmul_mx(dst, _load(left, _E4M3FN), _load(right, _E4M3FN), *scales)

        with pytest.raises(WrongBufferError, match=r"nc_matmul_mx: dst sbuf_0 lies in sbuf; accepted: psum"):
            Case().simulate(kernel)

    def test_dst_shape(self):
        with pytest.raises(ShapeError, match=r"dst \[64, 95\]; accepted: \(64, 96\)"):
            Case().simulate(functools.partial(_kernel, dst_shape=(64, 95)))


class TestRules:
    """What the operands must be."""

    def _with(self, error, words, case=None, **changes):
        def kernel(case, left, right, left_scale, right_scale):
            operands = {
                "dst": nl.ndarray(case.shape, dtype=nl.float32, buffer=nl.psum),
                "stationary": _load(left, case.kinds[0]),
                "moving": _load(right, case.kinds[1]),
                "stationary_scale": _load_scales(left_scale),
                "moving_scale": _load_scales(right_scale),
            }
            for name, change in changes.items():
                operands[name] = change(operands[name]) if name in operands else change
            nisa.nc_matmul_mx(**operands)
            return _out(operands["dst"])

        case = case or Case()
        if error is None:
            return case.simulate(kernel)
        with pytest.raises(error, match=words):
            case.simulate(kernel)
        return None

    def test_sound_operands(self):
        Case().check(self._with(None, None))

    @pytest.mark.parametrize("given", [None, 3, "x"])
    def test_no_tensor(self, given):
        self._with(ArgumentError, r"moving_scale is .*; accepted: an NkiTensor", moving_scale=lambda _: given)

    @pytest.mark.parametrize("operand", ["stationary", "moving", "stationary_scale", "moving_scale"])
    def test_operand_in_psum(self, operand):
        self._with(
            WrongBufferError,
            f"{operand} psum_. lies in psum; accepted: sbuf",
            **{operand: lambda t: nl.ndarray(t.shape, dtype=nl.float32, buffer=nl.psum)},
        )

    @pytest.mark.parametrize("operand", ["stationary", "moving"])
    def test_data_type(self, operand):
        self._with(DtypeError, f"{operand} sbuf_. is uint32; accepted: ", **{operand: lambda t: t.view(nl.uint32)})

    @pytest.mark.parametrize("operand", ["stationary_scale", "moving_scale"])
    def test_scale_type(self, operand):
        self._with(
            DtypeError,
            f"{operand} sbuf_. is int8; accepted: float8_e8m0fnu, uint8",
            **{operand: lambda t: t.view(nl.int8)},
        )

    def test_partitions_differ(self):
        self._with(ShapeError, r"moving has 96 partitions, stationary 128", moving=lambda t: t[:96])

    def test_partitions_not_of_whole_quadrants(self):
        self._with(
            ShapeError, r"48 partitions .*a multiple of 32", stationary=lambda t: t[:48], moving=lambda t: t[:48]
        )

    def test_stationary_columns_odd_or_many(self):
        self._with(ShapeError, r"63 columns; accepted: an even number up to 128", stationary=lambda t: t[:, :63])

        def kernel(case, left, right, left_scale, right_scale):
            scales = (_load_scales(left_scale), _load_scales(right_scale))
            psum = nl.ndarray((128, 96), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_matmul_mx(psum, _load(left, _E4M3FN), _load(right, _E4M3FN), *scales)

        with pytest.raises(ShapeError, match=r"130 columns; accepted: an even number up to 128"):
            Case(rows=130).simulate(kernel)

    def test_scale_columns(self):
        self._with(
            ShapeError, r"moving_scale \[128, 90\] has 90 columns; accepted: 96", moving_scale=lambda t: t[:, :90]
        )

    @pytest.mark.parametrize("start", [1, 3, 16, 28])
    def test_scale_at_another_offset_than_0_4_8_12(self, start):
        self._with(
            PartitionError,
            f"stationary_scale starts at partition {start}; accepted: 0, 4, 8 or 12",
            stationary_scale=lambda t: t[start:],
        )

    def test_scale_in_another_quadrant(self):
        self._with(
            PartitionError,
            r"moving_scale starts at partition 32; .*the quadrant of moving, which starts at 0",
            moving_scale=lambda t: t[32:],
        )

    def test_scale_of_too_few_quadrants(self):
        self._with(
            ShapeError,
            r"moving_scale has 96 partitions for 128 of moving; accepted: 100",
            moving_scale=lambda t: t[:96],
        )

    def test_compact_scales_for_more_than_32_partitions(self):
        self._with(ShapeError, r"stationary_scale has 16 partitions for 128", stationary_scale=lambda t: t[:16])

    def test_scale_that_nothing_wrote(self):
        def fresh(tensor):
            return nl.ndarray(tensor.shape, dtype=tensor.dtype, buffer=nl.sbuf)

        self._with(UninitializedReadError, r"moving_scale: element \[0, 0\]", moving_scale=fresh)

    @pytest.mark.parametrize(
        ("position", "size", "error", "words"),
        [
            ((0, 0), (64, 64), ArgumentError, r"tile_size \(64, 64\); accepted: \(32 or 64 or 128, 128\)"),
            ((0, 32), (128, 128), ArgumentError, r"multiples of it, below 128"),
            ((0, 0), (64, 128), ShapeError, r"stationary has 128 partitions .*up to tile_size"),
            ((0, 0), None, ArgumentError, r"both or neither"),
        ],
    )
    def test_tiles(self, position, size, error, words):
        self._with(error, words, tile_position=position, tile_size=size)

    def test_accumulate(self):
        self._with(ArgumentError, r"accumulate 2; accepted: True, False or None", accumulate=2)


@pytest.mark.parametrize("given", ["nothing that fits", None])
def test_the_target_is_refused_before_anything_else(given):
    def kernel():
        nisa.nc_matmul_mx(given, given, given, given, given)

    with pytest.raises(TargetError, match=r"nisa\.nc_matmul_mx: target trn2; accepted: trn3"):
        run(kernel, options=Options(target="trn2"))
    with pytest.raises(ArgumentError, match=r"nisa\.nc_matmul_mx: dst is"):
        run(kernel, options=Options(target="trn3"))


@pytest.mark.parametrize("changed", ["data", "scale"])
def test_operands_overwritten_between_products_are_decoded_again(changed):
    first, second = Case(partitions=32), Case(partitions=32)
    second.left = -first.left
    second.left_words = first.left_words ^ np.uint32(0x80808080)
    if changed == "scale":
        second.left, second.left_words = first.left, first.left_words
        second.left_scales = first.left_scales + np.uint8(3)

    def kernel(words, scales, right, right_scales):
        a, a_scale = _load(words[0], _E4M3FN), _load_scales(scales[0])
        b, b_scale = _load(right, _E4M3FN), _load_scales(right_scales)
        results = []
        for step in range(2):
            if step:
                nisa.dma_copy(a, words[1].view(_E4M3FN))
                nisa.dma_copy(a_scale, scales[1].view(nl.float8_e8m0fnu))
            psum = nl.ndarray(first.shape, dtype=nl.float32, buffer=nl.psum)
            nisa.nc_matmul_mx(psum, a, b, a_scale, b_scale)
            results.append(_out(psum))
        return tuple(results)

    words = np.stack([first.left_words, second.left_words])
    scales = np.stack([first.left_scales, second.left_scales])
    for limit in (512 << 20, 0):
        options = Options(target="trn3", decode_cache_bytes=limit)
        results = run(kernel, words, scales, first.right_words, first.right_scales, options=options).outputs
        first.check(results[0])
        second.check(results[1])


def test_one_operand_with_two_scale_tiles():
    case, other = Case(partitions=32), Case(partitions=32)
    other.left_scales = case.left_scales[:, ::-1].copy()

    def kernel(case, left, right, left_scale, right_scale, other_scale):
        a, b, b_scale = _load(left, _E4M3FN), _load(right, _E4M3FN), _load_scales(right_scale)
        tiles = [_load_scales(left_scale), _load_scales(other_scale)]
        results = []
        for scale in (*tiles, *tiles):
            psum = nl.ndarray(case.shape, dtype=nl.float32, buffer=nl.psum)
            nisa.nc_matmul_mx(psum, a, b, scale, b_scale)
            results.append(_out(psum))
        return tuple(results)

    arrays = (case.left_words, case.right_words, case.left_scales, case.right_scales, other.left_scales)
    results = run(kernel, case, *arrays, options=Options(target="trn3")).outputs
    for got, expected in zip(results, (case, other, case, other), strict=True):
        expected.check(got)


class TestIndirect:
    """Data and scales are gathered by one index."""

    def _run(self, index_of_scale):
        case = Case(partitions=32, columns=96)
        index = np.random.default_rng(5).permutation(96)[:16].astype(np.uint32)
        # Column-major over 16 partitions: column j of the view is index[j % 16, j // 16].
        layout = np.zeros((32, 1), np.uint32)
        layout[:16, 0] = layout[16:, 0] = index

        def kernel(case, left, right, left_scale, right_scale, layout):
            a, b = _load(left, _E4M3FN), _load(right, _E4M3FN)
            tiles = [nl.ndarray((32, 1), dtype=nl.uint32, buffer=nl.sbuf) for _ in range(2)]
            for tile in tiles:
                nisa.dma_copy(tile, layout)
            b_scale = nl.ndarray((32, 96), dtype=nl.float8_e8m0fnu, buffer=nl.sbuf)
            nisa.memset(b_scale.view(nl.uint8), 127)
            nisa.dma_copy(b_scale[:4], right_scale.view(nl.float8_e8m0fnu))
            psum = nl.ndarray((64, 16), dtype=nl.float32, buffer=nl.psum)
            scale = b_scale if index_of_scale is None else b_scale.indirect(tiles[index_of_scale], 16)
            nisa.nc_matmul_mx(psum, a, b.indirect(tiles[0], 16), _load_scales(left_scale), scale)
            return _out(psum)

        arrays = (case.left_words, case.right_words, case.left_scales, case.right_scales, layout)
        got = run(kernel, case, *arrays, options=Options(target="trn3")).outputs
        case.right, case.right_scales = case.right[:, index], case.right_scales[:, index]
        case.check(got)

    def test_the_same_index(self):
        self._run(0)

    @pytest.mark.parametrize("index", [1, None])
    def test_another_index_or_none(self, index):
        with pytest.raises(ArgumentError, match=r"moving and moving_scale do not use the same index"):
            self._run(index)

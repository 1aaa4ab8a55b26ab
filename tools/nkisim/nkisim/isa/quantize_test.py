"""quantize_mx: layout of codes and scales, and each of its rules by a pair of kernels.

The arithmetic is compared with torchao in numerics/mx_test.py.
"""

import ml_dtypes
import numpy as np
import pytest

import nki.isa as nisa
import nki.language as nl
from nkisim import Options, run
from nkisim.errors import (
    ArgumentError,
    DtypeError,
    OutputNotWrittenError,
    PartitionError,
    ShapeError,
    TargetError,
    UninitializedReadError,
    WrongBufferError,
)

_LANES = {nl.float8_e4m3fn_x4: ml_dtypes.float8_e4m3fn, nl.float8_e5m2_x4: ml_dtypes.float8_e5m2}


def _random(shape, dtype=ml_dtypes.bfloat16):
    random = np.random.default_rng(shape)
    return (random.standard_normal(shape) * 2.0 ** random.integers(-6, 7, shape)).astype(dtype)


def _load(array, start=0):
    partitions, *free = array.shape
    tile = nl.ndarray((start + partitions, *free), dtype=array.dtype, buffer=nl.sbuf)[start:]
    nisa.dma_copy(tile, array)
    return tile


def _store(tile):
    hbm = nl.ndarray(tile.shape, dtype=tile.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(hbm, tile)
    return hbm


def _kernel(src, kind=nl.float8_e4m3fn_x4, scale_dtype=nl.uint8, start=0, offset=0):
    """Returns the words and, compact, the scales."""
    partitions, free = src.shape
    tile = _load(src, start)
    dst = nl.ndarray((start + partitions, free // 4), dtype=kind, buffer=nl.sbuf)[start:]
    height = 4 if partitions == 32 else partitions - offset
    scale = nl.ndarray((start + offset + height, free // 4), dtype=scale_dtype, buffer=nl.sbuf)[start + offset :]
    nisa.quantize_mx(dst, tile, scale)
    scales = nl.ndarray((partitions // 8, free // 4), dtype=nl.uint8, buffer=nl.shared_hbm)
    for quadrant in range(partitions // 32):
        rows = slice(4 * quadrant, 4 * quadrant + 4)
        nisa.dma_copy(scales[rows], scale[32 * quadrant : 32 * quadrant + 4].view(nl.uint8))
    words = nl.ndarray(dst.shape, dtype=nl.uint32, buffer=nl.shared_hbm)
    nisa.dma_copy(words, dst.view(nl.uint32))
    return words, scales


def _simulate(kernel, *arrays, target="trn3", **kwargs):
    return run(kernel, *arrays, options=Options(target=target), **kwargs).outputs


def _expected(values, kind):
    """Element by element in float64, from the definition: floor of the exponent, saturation."""
    exponent, largest = {nl.float8_e4m3fn_x4: (8, 448), nl.float8_e5m2_x4: (15, 57344)}[kind]
    partitions, free = values.shape
    codes = np.zeros((partitions, free), np.uint8)
    scales = np.zeros((partitions // 8, free // 4), np.uint8)
    for row in range(partitions // 8):
        for column in range(free // 4):
            block = values[8 * row : 8 * row + 8, 4 * column : 4 * column + 4].astype(np.float64)
            power = int(np.floor(np.log2(np.abs(block).max()))) - exponent
            scales[row, column] = power + 127
            scaled = (block * 2.0**-power).clip(-largest, largest)
            codes[8 * row : 8 * row + 8, 4 * column : 4 * column + 4] = scaled.astype(_LANES[kind]).view(np.uint8)
    return codes.view(np.uint32), scales


@pytest.mark.parametrize("kind", list(_LANES))
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("shape", [(32, 4), (64, 60), (128, 512)])
@pytest.mark.parametrize("scale_dtype", [nl.uint8, nl.float8_e8m0fnu])
def test_codes_and_scales(kind, dtype, shape, scale_dtype):
    src = _random(shape, dtype)
    words, scales = _simulate(_kernel, src, kind=kind, scale_dtype=scale_dtype)
    expected_words, expected_scales = _expected(src, kind)
    np.testing.assert_array_equal(words, expected_words)
    np.testing.assert_array_equal(scales, expected_scales)


@pytest.mark.parametrize("offset", [0, 4, 8, 12])
@pytest.mark.parametrize(("start", "partitions"), [(0, 128), (64, 64), (96, 32)])
def test_offsets_and_start_partitions(offset, start, partitions):
    src = _random((partitions, 24))
    words, scales = _simulate(_kernel, src, start=start, offset=offset)
    expected_words, expected_scales = _expected(src, nl.float8_e4m3fn_x4)
    np.testing.assert_array_equal(words, expected_words)
    np.testing.assert_array_equal(scales, expected_scales)


def test_packed_scales_of_two_calls_do_not_touch_each_other():
    first, second = _random((128, 48)), _random((128, 96))

    def kernel(first, second):
        packed = nl.ndarray((128, 24), dtype=nl.uint8, buffer=nl.sbuf)
        nisa.memset(packed, 77)
        for src, scale in ((first, packed[0:, :12]), (second, packed[4:, :])):
            dst = nl.ndarray((128, src.shape[1] // 4), dtype=nl.float8_e4m3fn_x4, buffer=nl.sbuf)
            nisa.quantize_mx(dst, _load(src), scale)
        return _store(packed)

    expected = np.full((4, 32, 24), 77, np.uint8)
    expected[:, 0:4, :12] = _expected(first, nl.float8_e4m3fn_x4)[1].reshape(4, 4, 12)
    expected[:, 4:8] = _expected(second, nl.float8_e4m3fn_x4)[1].reshape(4, 4, 24)
    np.testing.assert_array_equal(_simulate(kernel, first, second), expected.reshape(128, 24))


def test_partitions_between_scales_are_zero_where_nothing_was_written():
    def kernel(src):
        dst = nl.ndarray((64, 6), dtype=nl.float8_e4m3fn_x4, buffer=nl.sbuf)
        scale = nl.ndarray((64, 6), dtype=nl.uint8, buffer=nl.sbuf)
        nisa.quantize_mx(dst, _load(src), scale)
        return _store(scale)

    src = _random((64, 24))
    expected = np.zeros((2, 32, 6), np.uint8)
    expected[:, :4] = _expected(src, nl.float8_e4m3fn_x4)[1].reshape(2, 4, 6)
    np.testing.assert_array_equal(_simulate(kernel, src), expected.reshape(64, 6))


def test_strided_source_of_several_free_dimensions():
    src = _random((64, 6, 5, 4))

    def kernel(src):
        tile = _load(src)
        dst = nl.ndarray((64, 3, 5), dtype=nl.float8_e5m2_x4, buffer=nl.sbuf)
        scale = nl.ndarray((64, 3, 5), dtype=nl.uint8, buffer=nl.sbuf)
        nisa.quantize_mx(dst, tile[:, ::2], scale)
        return _store(dst.view(nl.uint32))

    expected, _ = _expected(src[:, ::2].reshape(64, 60), nl.float8_e5m2_x4)
    np.testing.assert_array_equal(_simulate(kernel, src).reshape(64, 15), expected)


def test_what_it_writes_nc_matmul_mx_reads():
    a, b = _random((128, 4 * 32)), _random((128, 4 * 48))

    def kernel(a, b):
        operands = []
        for src in (a, b):
            dst = nl.ndarray((128, src.shape[1] // 4), dtype=nl.float8_e4m3fn_x4, buffer=nl.sbuf)
            scale = nl.ndarray((128, src.shape[1] // 4), dtype=nl.float8_e8m0fnu, buffer=nl.sbuf)
            nisa.quantize_mx(dst, _load(src), scale)
            operands.append((dst, scale))
        psum = nl.ndarray((32, 48), dtype=nl.float32, buffer=nl.psum)
        (left, left_scale), (right, right_scale) = operands
        nisa.nc_matmul_mx(psum, left, right, left_scale, right_scale)
        out = nl.ndarray((32, 48), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(out, psum)
        return _store(out)

    exact = np.einsum("pml,pnl->mn", *(t.astype(np.float64).reshape(128, -1, 4) for t in (a, b)))
    magnitude = np.einsum("pml,pnl->mn", *(np.abs(t.astype(np.float64)).reshape(128, -1, 4) for t in (a, b)))
    got = _simulate(kernel, a, b)
    assert np.sqrt(np.mean((got - exact) ** 2)) < 0.1 * np.sqrt(np.mean(exact**2))
    # 448 / 512 is the largest a saturated element loses, 2 ** -4 half a step of what is not.
    assert (np.abs(got - exact) <= magnitude * (1 - (7 / 8) ** 2)).all()


class TestRules:
    """What the operands must be."""

    def _with(self, error, words, src_shape=(64, 32), target="trn3", **changes):
        def kernel(src):
            operands = {
                "dst": nl.ndarray((src.shape[0], src.shape[1] // 4), dtype=nl.float8_e4m3fn_x4, buffer=nl.sbuf),
                "src": _load(src),
                "dst_scale": nl.ndarray((src.shape[0], src.shape[1] // 4), dtype=nl.uint8, buffer=nl.sbuf),
            }
            for name, change in changes.items():
                operands[name] = change(operands[name])
            nisa.quantize_mx(**operands)
            return _store(operands["dst"])

        src = _random(src_shape)
        if error is None:
            _simulate(kernel, src, target=target)
            return
        with pytest.raises(error, match=words):
            _simulate(kernel, src, target=target)

    def test_sound_operands(self):
        self._with(None, None)

    @pytest.mark.parametrize("operand", ["dst", "src", "dst_scale"])
    def test_operand_in_psum(self, operand):
        self._with(
            WrongBufferError,
            f"nisa.quantize_mx: {operand} psum_3 lies in psum; accepted: sbuf",
            **{operand: lambda t: nl.ndarray(t.shape, dtype=nl.float32, buffer=nl.psum)},
        )

    @pytest.mark.parametrize("operand", ["dst", "src", "dst_scale"])
    def test_no_tensor(self, operand):
        self._with(ArgumentError, f"{operand} is NoneType None; accepted: an NkiTensor", **{operand: lambda _: None})

    def test_source_type(self):
        def wide(tensor):
            copy = nl.ndarray(tensor.shape, dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_copy(copy, tensor)
            return copy

        self._with(DtypeError, r"src sbuf_3 is float32; accepted: float16, bfloat16", src=wide)

    @pytest.mark.parametrize("kind", [nl.float4_e2m1fn_x4, nl.uint32, nl.float8_e4m3fn])
    def test_result_type(self, kind):
        self._with(
            DtypeError,
            f"dst sbuf_3 is {kind}; accepted: float8_e5m2_x4, float8_e4m3fn_x4",
            dst=lambda t: nl.ndarray(t.shape, dtype=kind, buffer=nl.sbuf),
        )

    def test_scale_type(self):
        self._with(
            DtypeError,
            r"dst_scale sbuf_2 is int8; accepted: float8_e8m0fnu, uint8",
            dst_scale=lambda t: t.view(nl.int8),
        )

    def test_partitions_not_of_whole_quadrants(self):
        self._with(
            ShapeError,
            r"src \[48, 32\] has 48 partitions .*a multiple of 32",
            src=lambda t: t[:48],
            dst=lambda t: t[:48],
        )

    def test_elements_not_of_whole_lanes(self):
        self._with(ShapeError, r"30 elements in each; .*a multiple of 4", src=lambda t: t[:, :30])

    def test_result_columns(self):
        self._with(
            ShapeError, r"dst \[64, 7\] has 7 columns; accepted: 8, a quarter of src's 32", dst=lambda t: t[:, :7]
        )

    def test_result_partitions(self):
        self._with(ShapeError, r"dst has 32 partitions, src 64; accepted: the same number", dst=lambda t: t[:32])

    def test_scale_columns(self):
        self._with(ShapeError, r"dst_scale \[64, 7\] has 7 columns; accepted: 8", dst_scale=lambda t: t[:, :7])

    @pytest.mark.parametrize("start", [2, 16, 20])
    def test_scale_at_another_offset_than_0_4_8_12(self, start):
        self._with(
            PartitionError,
            f"dst_scale starts at partition {start}; accepted: 0, 4, 8 or 12",
            dst_scale=lambda t: t[start:],
        )

    def test_scale_in_another_quadrant(self):
        self._with(PartitionError, r"dst_scale starts at partition 32; .*quadrant of src", dst_scale=lambda t: t[32:])

    def test_compact_scales_for_more_than_32_partitions(self):
        self._with(ShapeError, r"dst_scale has 8 partitions for 64 of src; accepted: 36", dst_scale=lambda t: t[:8])
        self._with(None, None, dst_scale=lambda t: t[:36])

    def test_broadcast_result(self):
        self._with(ShapeError, r"dst sbuf_0 is a broadcast view", dst=lambda t: t[:, :1].broadcast(1, 8))

    def test_source_that_nothing_wrote(self):
        self._with(
            UninitializedReadError,
            r"src: element \[0, 0\]",
            src=lambda t: nl.ndarray(t.shape, dtype=t.dtype, buffer=nl.sbuf),
        )


@pytest.mark.parametrize("given", ["nothing that fits", None])
def test_the_target_is_refused_before_anything_else(given):
    def kernel():
        nisa.quantize_mx(given, given, given)

    with pytest.raises(TargetError, match=r"nisa\.quantize_mx: target trn2; accepted: trn3"):
        run(kernel, options=Options(target="trn2"))
    with pytest.raises(ArgumentError, match=r"nisa\.quantize_mx: dst is"):
        run(kernel, options=Options(target="trn3"))


def test_an_output_needs_every_scale_written():
    def kernel(src, quantised):
        dst = nl.ndarray((32, 8), dtype=nl.float8_e4m3fn_x4, buffer=nl.sbuf)
        scale = nl.ndarray((4, 8), dtype=nl.uint8, buffer=nl.sbuf)
        out = nl.ndarray((4, 8), dtype=nl.uint8, buffer=nl.shared_hbm)
        if quantised:
            nisa.quantize_mx(dst, _load(src), scale)
            nisa.dma_copy(out, scale)
        return out

    src = _random((32, 32))
    np.testing.assert_array_equal(_simulate(kernel, src, quantised=True), _expected(src, nl.float8_e4m3fn_x4)[1])
    with pytest.raises(OutputNotWrittenError):
        _simulate(kernel, src, quantised=False)

"""nc_transpose on both engines, bit by bit, and each of its rules by a pair of kernels."""

import ml_dtypes
import numpy as np
import pytest

import nki.isa as nisa
import nki.language as nl
from nkisim import Options, run
from nkisim.dtypes import as_dtype
from nkisim.errors import (
    ArgumentError,
    DtypeError,
    EngineError,
    PartitionError,
    ShapeError,
    UninitializedReadError,
    WrongBufferError,
)

_WIDE = [np.float32, np.int32, np.uint32, np.float16, np.int16, ml_dtypes.bfloat16]
_NARROW = [ml_dtypes.float8_e4m3, ml_dtypes.float8_e5m2, np.int8, np.uint8]


def _bits(shape, dtype, seed=0):
    """Any bits at all: NaNs with payloads, infinities, subnormals."""
    partitions, *free = shape
    width = np.dtype(dtype).itemsize
    count = int(np.prod(free))
    data = np.random.default_rng((seed, *shape)).integers(0, 256, (partitions, count * width), dtype=np.uint8)
    return data.view(dtype).reshape(shape)


def _load(array, start=0):
    tile = nl.ndarray((start + array.shape[0], *array.shape[1:]), dtype=array.dtype, buffer=nl.sbuf)[start:]
    nisa.dma_copy(tile, array)
    return tile


def _out(tile):
    sbuf = nl.ndarray(tile.shape, dtype=tile.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(sbuf, tile)
    hbm = nl.ndarray(tile.shape, dtype=tile.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(hbm, sbuf)
    return hbm


def _kernel(array, buffer=nl.psum, engine=nisa.engine.unknown, dst_shape=None, dtype=None):
    data = _load(array)
    shape = dst_shape or (data.size // data.shape[0], data.shape[0])
    dst = nl.ndarray(shape, dtype=dtype or array.dtype, buffer=buffer)
    nisa.nc_transpose(dst, data, engine=engine)
    return _out(dst)


def _finished(kernel, *arrays, target="trn3", **kwargs):
    return run(kernel, *arrays, options=Options(target=target), **kwargs)


def _assert_transposed(got, array):
    expected = np.ascontiguousarray(array.reshape(array.shape[0], -1).T)
    np.testing.assert_array_equal(np.ascontiguousarray(got).view(np.uint8), expected.view(np.uint8))


@pytest.mark.parametrize("dtype", _WIDE)
@pytest.mark.parametrize("shape", [(128, 128), (1, 128), (128, 1), (77, 35), (64, 4, 9)])
@pytest.mark.parametrize("target", ["trn2", "trn3"])
def test_tensor_engine(dtype, shape, target):
    array = _bits(shape, dtype)
    finished = _finished(_kernel, array, target=target)
    _assert_transposed(finished.outputs, array)
    (record,) = (r for r in finished.cores[0].stream if r.op == "nc_transpose")
    assert record.engine is nisa.engine.tensor


@pytest.mark.parametrize("dtype", _WIDE + _NARROW)
@pytest.mark.parametrize("shape", [(32, 32), (1, 32), (7, 20), (8, 4, 5)])
@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum])
def test_vector_engine(dtype, shape, buffer):
    array = _bits(shape, dtype)
    finished = _finished(_kernel, array, buffer=buffer, engine=nisa.engine.vector)
    _assert_transposed(finished.outputs, array)
    (record,) = (r for r in finished.cores[0].stream if r.op == "nc_transpose")
    assert record.engine is nisa.engine.vector


def test_vector_engine_reads_psum_and_starts_in_any_quadrant():
    array = _bits((64, 20), np.float32)

    def kernel(array):
        psum = nl.ndarray((96, 20), dtype=nl.float32, buffer=nl.psum)
        nisa.tensor_copy(psum[64:], _load(array)[32:])
        dst = nl.ndarray((52, 40), dtype=nl.float32, buffer=nl.sbuf)
        nisa.nc_transpose(dst[32:, 4:36], psum[64:])
        return _out(dst[32:, 4:36])

    _assert_transposed(_finished(kernel, array).outputs, array[32:])


@pytest.mark.parametrize(
    ("shape", "buffer", "expected"),
    [((32, 32), nl.psum, "tensor"), ((32, 32), nl.sbuf, "vector"), ((33, 32), nl.psum, "tensor")],
)
def test_engine_left_open(shape, buffer, expected):
    finished = _finished(_kernel, _bits(shape, np.float32), buffer=buffer)
    assert [r.engine.name for r in finished.cores[0].stream if r.op == "nc_transpose"] == [expected]


@pytest.mark.parametrize("dtype", _NARROW)
@pytest.mark.parametrize("target", ["trn2", "trn3"])
def test_tensor_engine_writes_8_bits_as_16(dtype, target):
    array = _bits((100, 60), dtype)

    def kernel(array):
        psum = nl.ndarray((60, 100, 2), dtype=array.dtype, buffer=nl.psum)
        nisa.nc_transpose(psum[:, :, 0], _load(array), engine=nisa.engine.tensor)
        return _out(psum)

    got = _finished(kernel, array, target=target).outputs.view(np.uint8)
    np.testing.assert_array_equal(got[:, :, 0], array.view(np.uint8).T)
    assert not got[:, :, 1].any()


@pytest.mark.parametrize(("start", "step"), [(0, 1), (1, 2)])
def test_8_bits_that_are_not_every_other_byte(start, step):
    def kernel(array):
        psum = nl.ndarray((60, 202), dtype=array.dtype, buffer=nl.psum)
        nisa.nc_transpose(psum[:, start : start + 100 * step : step], _load(array))

    with pytest.raises(ShapeError, match=r"nc_transpose: dst .*accepted: steps of 2"):
        _finished(kernel, _bits((100, 60), np.uint8))


def test_odd_bytes_are_refused_after_even_ones_of_the_same_layout():
    def kernel(array):
        data, psum = _load(array), nl.ndarray((60, 202), dtype=array.dtype, buffer=nl.psum)
        nisa.nc_transpose(psum[:, 2:202:2], data, engine=nisa.engine.tensor)
        nisa.nc_transpose(psum[:, 1:201:2], data, engine=nisa.engine.tensor)

    with pytest.raises(ShapeError, match=r"accepted: steps of 2"):
        _finished(kernel, _bits((100, 60), np.uint8))


def test_strided_data_and_dst():
    array = _bits((64, 30), np.float16)

    def kernel(array):
        psum = nl.ndarray((15, 2, 64), dtype=nl.float16, buffer=nl.psum)
        data = _load(array)
        nisa.nc_transpose(psum[:, 1], data[:, ::2])
        nisa.nc_transpose(psum[:, 0, ::2], data[32:, 1::2])
        nisa.nc_transpose(psum[:, 0, 1::2], data[:32, 1::2])
        return _out(psum)

    got = _finished(kernel, array).outputs
    _assert_transposed(got[:, 1], array[:, ::2])
    _assert_transposed(got[:, 0, ::2], array[32:, 1::2])
    _assert_transposed(got[:, 0, 1::2], array[:32, 1::2])


class TestRules:
    """What the operands must be."""

    def _fails(self, error, words, shape=(64, 32), dtype=np.float32, target="trn3", **kwargs):
        with pytest.raises(error, match=words):
            _finished(_kernel, _bits(shape, dtype), target=target, **kwargs)

    def test_too_large_for_the_tensor_engine(self):
        self._fails(
            ShapeError,
            r"data \[64, 130\] on engine tensor; accepted: up to \(128, 128\)",
            (64, 130),
            dst_shape=(128, 64),
        )

    @pytest.mark.parametrize("shape", [(33, 32), (32, 33), (16, 4, 9)])
    def test_too_large_for_the_vector_engine(self, shape):
        words = r"data .* on engine vector; accepted: up to \(32, 32\)"
        self._fails(ShapeError, words, shape, engine=nisa.engine.vector)
        self._fails(ShapeError, words, shape, buffer=nl.sbuf)

    def test_tensor_engine_writes_psum_and_reads_sbuf(self):
        self._fails(
            WrongBufferError, r"dst sbuf_1 lies in sbuf; accepted: psum", buffer=nl.sbuf, engine=nisa.engine.tensor
        )

        def kernel(array):
            psum = nl.ndarray(array.shape, dtype=nl.float32, buffer=nl.psum)
            nisa.tensor_copy(psum, _load(array))
            nisa.nc_transpose(nl.ndarray((32, 64), dtype=nl.float32, buffer=nl.psum), psum, nisa.engine.tensor)

        with pytest.raises(WrongBufferError, match=r"data psum_0 lies in psum; accepted: sbuf"):
            _finished(kernel, _bits((64, 32), np.float32))

    @pytest.mark.parametrize("engine", [nisa.engine.scalar, nisa.engine.gpsimd, nisa.engine.dma, "tensor"])
    def test_other_engines(self, engine):
        self._fails(EngineError, r"accepted: tensor, vector or unknown", engine=engine)

    @pytest.mark.parametrize(("buffer", "shape"), [(nl.psum, (64, 32)), (nl.sbuf, (32, 32))])
    def test_types_differ(self, buffer, shape):
        with pytest.raises(DtypeError, match=r"dst is bfloat16, data is float32; accepted: the same type"):
            _finished(_kernel, _bits(shape, np.float32), buffer=buffer, dtype=as_dtype("bfloat16"))

    @pytest.mark.parametrize("buffer", [nl.psum, nl.sbuf])
    def test_shape_of_dst(self, buffer):
        self._fails(
            ShapeError,
            r"dst \[20, 32\]; accepted: \(20, 31\), data transposed",
            (31, 20),
            buffer=buffer,
            dst_shape=(20, 32),
        )

    def test_start_partition(self):
        def kernel(array, start):
            dst = nl.ndarray((32, 32), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_transpose(dst, _load(array)[start : start + 32])
            return _out(dst)

        array = _bits((96, 32), np.float32)
        _assert_transposed(_finished(kernel, array, 32).outputs, array[32:64])
        with pytest.raises(
            PartitionError, match=r"data sbuf_. has 32 partitions from start partition 1; accepted: 0, 32"
        ):
            _finished(kernel, array, 1)

    def test_bank_on_trn2(self):
        def kernel(array, start):
            psum = nl.ndarray((32, 1024), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_transpose(psum[:, start : start + 128], _load(array))
            return _out(psum[:, start : start + 128])

        array = _bits((128, 32), np.float32)
        for target, start in (("trn2", 384), ("trn2", 512), ("trn3", 400)):
            _assert_transposed(_finished(kernel, array, start, target=target).outputs, array)
        with pytest.raises(ShapeError, match=r"crosses a PSUM bank on trn2"):
            _finished(kernel, array, 400, target="trn2")

    def test_no_tensor(self):
        def kernel(nothing):
            nisa.nc_transpose(nl.ndarray((32, 32), dtype=nl.float32, buffer=nl.psum), nothing)

        with pytest.raises(ArgumentError, match=r"data is NoneType None; accepted: an NkiTensor"):
            _finished(kernel, None)

    def test_uninitialised_data(self):
        def kernel():
            data = nl.ndarray((32, 32), dtype=nl.float32, buffer=nl.sbuf)
            nisa.nc_transpose(nl.ndarray((32, 32), dtype=nl.float32, buffer=nl.psum), data)

        with pytest.raises(UninitializedReadError, match=r"nc_transpose: data: element \[0, 0\]"):
            _finished(kernel)

    def test_broadcast_dst(self):
        def kernel(array):
            dst = nl.ndarray((32, 1), dtype=nl.float32, buffer=nl.psum)
            nisa.nc_transpose(dst.broadcast(1, 64), _load(array))

        with pytest.raises(ShapeError, match=r"dst psum_0 is a broadcast view"):
            _finished(kernel, _bits((64, 32), np.float32))

"""Limits against hand counts."""

import re

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
import nkisim
from common.hardware import TRN2, TRN3
from tools.timeline_report import roofline, roofline_svg, synthetic
from tools.timeline_report.roofline import Point


def point(flops, hbm_bytes, seconds=1e-3, hardware=TRN2, cores=1):
    return Point("x", hardware, cores, flops, hbm_bytes, seconds)


def test_a_matrix_product_and_a_copy():
    found = roofline.point("x", synthetic.timeline(100))
    assert found.flops == {"bf16": 2 * 128 * 128 * 512}
    assert found.hbm_bytes == 128 * 512 * 2


@nki.jit
def products(x):
    """Every kind of product on trn2, a transpose by one, and a barrier that names 64 KiB of HBM."""

    def tile(shape, dtype, buffer=nl.sbuf):
        return nl.ndarray(shape, dtype=dtype, buffer=buffer)

    out = tile((128, 128), x.dtype, nl.shared_hbm)
    nisa.dma_copy(out[nl.program_id(0) * 64 : nl.program_id(0) * 64 + 64, :], x[0:64, :])
    nisa.core_barrier(out, (0, 1))
    for dtype in (nl.float32, nl.bfloat16):
        left, right = tile((64, 32), dtype), tile((64, 100), dtype)
        nisa.nc_matmul(tile((32, 100), nl.float32, nl.psum), left, right)
    left, right = tile((64, 2, 32), nl.float8_e4m3), tile((64, 2, 100), nl.float8_e4m3)
    double = nisa.matmul_perf_mode.double_row
    nisa.nc_matmul(tile((32, 100), nl.float32, nl.psum), left, right, perf_mode=double)
    square = tile((64, 64), nl.float32)
    nisa.nc_matmul(tile((64, 64), nl.float32, nl.psum), square, square, is_transpose=True)
    nisa.nc_transpose(tile((64, 64), nl.float32, nl.psum), square, nisa.engine.tensor)
    return out


def test_products_and_bytes_by_hand():
    """2 K M N each, K twice as large with double rows; of each core 32 KiB read and written."""
    options = nkisim.Options(target="trn2", numerics=False)
    cores = nkisim.run(products[2], np.zeros((128, 128), np.float32), options=options).cores
    found = roofline.flops([core.stream for core in cores], TRN2)
    one = 2 * (2 * 64 * 32 * 100)
    assert found == {"fp32": one, "bf16": one, "fp8": 2 * one}
    assert [roofline.hbm_bytes(core.stream) for core in cores] == [2 * 64 * 512] * 2


@nki.jit
def mx_product(x):
    def tile(shape, dtype, buffer=nl.sbuf):
        return nl.ndarray(shape, dtype=dtype, buffer=buffer)

    left, right = tile((128, 32), nl.float8_e4m3fn_x4), tile((128, 100), nl.float8_e4m3fn_x4)
    left_scale, right_scale = tile((128, 32), nl.uint8), tile((128, 100), nl.uint8)
    nisa.nc_matmul_mx(tile((32, 100), nl.float32, nl.psum), left, right, left_scale, right_scale)
    out = tile(x.shape, x.dtype, nl.shared_hbm)
    nisa.dma_copy(out, x)
    return out


def test_packed_values_count_each():
    options = nkisim.Options(target="trn3", numerics=False)
    (core,) = nkisim.run(mx_product, np.zeros((1, 1), np.float32), options=options).cores
    assert roofline.flops([core.stream], TRN3) == {"MX": 2 * 512 * 32 * 100}


def test_limits_add_up_over_types_of_products():
    found = point({"bf16": 79e12 * 1e-4, "fp32": 20e12 * 2e-4}, 1000)
    assert found.tensor_seconds == pytest.approx(3e-4)
    assert (found.limit, found.share_of_limit) == ("PE", pytest.approx(0.3))
    assert point({"bf16": 79e12 * 1e-4, "fp32": 20e12 * 2e-4}, 1000, cores=2).tensor_seconds == pytest.approx(1.5e-4)


def test_hbm_is_shared_by_the_chips_cores():
    found = point({"bf16": 1.0}, 3_000_000_000 // 8)
    assert found.hbm_seconds == pytest.approx(1e-3)
    assert (found.limit, found.share_of_limit) == ("HBM", pytest.approx(1.0))
    assert point({"bf16": 1.0}, 3_000_000_000 // 8, cores=2).hbm_seconds == pytest.approx(5e-4)


def svg_points(*points):
    svg = roofline_svg.svg(points)
    return [tuple(map(float, found)) for found in re.findall(r'<circle[^>]*cx="([\d.]+)" cy="([\d.]+)"', svg)]


def test_more_intense_is_further_right_and_faster_is_higher():
    slow, fast, intense = (
        point({"MX": 1e9}, bytes_, seconds, TRN3) for bytes_, seconds in ((10**7, 1e-3), (10**7, 1e-4), (10**6, 1e-3))
    )
    first, second, third = svg_points(slow, fast, intense)
    assert first[0] == second[0] < third[0]
    assert second[1] < first[1] == third[1]


def test_a_point_on_the_roof_lies_on_its_line():
    intensity = 20.0
    bandwidth = TRN2.hbm_bytes_per_s_per_chip / 8
    on_roof = point({"bf16": intensity * 1e7}, 10**7, 1e7 / bandwidth)
    ((x, y),) = svg_points(on_roof)
    line = r'<line class="roof" x1="([\d.]+)" y1="([\d.]+)" x2="([\d.]+)" y2="([\d.]+)"/>'
    x1, y1, x2, y2 = map(float, re.findall(line, roofline_svg.svg([on_roof]))[-1])
    assert y == pytest.approx(y1 + (x - x1) / (x2 - x1) * (y2 - y1), abs=0.5)

"""Hardware records: every value has a source, and the values are those of the guides."""

import dataclasses
import re
import subprocess
import sys

import pytest

from common.hardware import TRN2, TRN3, Hardware, get


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Hardware)])
def test_every_value_has_a_source(field):
    assert len(TRN2.source(field)) > 10


def test_source_refuses_unknown_fields():
    with pytest.raises(ValueError, match=r"field_name must be one of name, .*; got 'colour'"):
        TRN2.source("colour")


def test_memory_sizes_as_published():
    assert TRN2.sbuf_bytes_per_partition * TRN2.partitions == 28 * 2**20
    assert TRN3.sbuf_bytes_per_partition * TRN3.partitions == 32 * 2**20
    assert TRN2.sbuf_usable_bytes_per_partition == 212_984
    assert TRN3.sbuf_usable_bytes_per_partition == 256 * 1024 - 16 * 1024 - 8
    for hardware in (TRN2, TRN3):
        assert hardware.psum_bytes_per_partition * hardware.partitions == 2 * 2**20
        assert hardware.psum_bank_fp32 == 512
        assert hardware.hbm_stacks_per_chip == 4
    assert TRN3.matmul_moving_free_max_fp32 == TRN3.psum_bytes_per_partition // 4
    assert TRN3.matmul_moving_free_max_bf16 == TRN3.psum_bytes_per_partition // 2
    assert TRN2.matmul_moving_free_max_fp32 == TRN2.psum_bank_fp32


@pytest.mark.parametrize("hardware", [TRN2, TRN3], ids=lambda hardware: hardware.name)
def test_published_peaks_follow_from_array_and_clock(hardware):
    bf16_tflops = 2 * 128 * 128 * hardware.tensor_clock_ghz / 1000
    assert hardware.tensor_peak_bf16_tflops == pytest.approx(bf16_tflops, rel=0.01)
    assert hardware.tensor_peak_fp32_tflops == pytest.approx(bf16_tflops / 4, rel=0.02)
    if hardware.tensor_peak_fp8_tflops is not None:
        assert hardware.tensor_peak_fp8_tflops == pytest.approx(2 * bf16_tflops, rel=0.01)
    if hardware.supports_mx:
        assert hardware.tensor_peak_mx_tflops == pytest.approx(4 * bf16_tflops, rel=0.01)
    else:
        assert hardware.tensor_peak_mx_tflops is None


@pytest.mark.parametrize(
    ("num_partitions", "starts"),
    [(1, (0, 32, 64, 96)), (32, (0, 32, 64, 96)), (33, (0, 64)), (64, (0, 64)), (65, (0,)), (128, (0,))],
)
def test_start_partitions(num_partitions, starts):
    assert TRN3.allowed_start_partitions(num_partitions) == starts


@pytest.mark.parametrize("num_partitions", [0, 129])
def test_start_partitions_refuse_what_no_access_has(num_partitions):
    with pytest.raises(ValueError, match=rf"num_partitions must be 1..128, got {num_partitions}"):
        TRN3.allowed_start_partitions(num_partitions)


def test_get():
    assert get("trn2") is TRN2
    assert get("trn3") is TRN3
    assert (TRN2.generation, TRN3.generation) == ("gen3", "gen4")


@pytest.mark.parametrize("target", ["trn1", "TRN3", "", None, 3, ["trn3"]])
def test_get_names_the_accepted_targets(target):
    with pytest.raises(ValueError, match=re.escape(f"target must be 'trn2' or 'trn3', got {target!r}")):
        get(target)


def test_records_are_frozen_and_hashable():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TRN2.partitions = 64  # type: ignore[misc]
    assert len({TRN2, TRN3, get("trn2")}) == 2


def test_planning_needs_no_torch():
    program = "import sys; from common import budget, hardware, schedule, tiling; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, env={"PYTHONPATH": ":".join(sys.path)})

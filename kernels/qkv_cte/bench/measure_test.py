"""What a measurement says of a run."""

import torch

from common.hardware import TRN3
from kernels.qkv_cte.bench import measure
from kernels.qkv_cte.oracle import cases
from kernels.qkv_cte.planning import plan
from kernels.qkv_cte.planning.plan import HbmBytes

CASE = next(case for case in cases.CORNERS if case.name == "h_1152")
BATCH = next(case for case in cases.CORNERS if case.name == "batch_2")


def test_a_run_without_values_moves_and_issues_the_same():
    with_values = measure.run(BATCH.plan, cases.normal_operands(BATCH))
    without = measure.run(BATCH.plan)
    assert without.output is None
    assert with_values.output is not None
    assert with_values.output.shape == (2, 130, 512)
    assert with_values.output.dtype == torch.bfloat16
    assert without.hbm == with_values.hbm
    assert without.instructions == with_values.instructions


def test_bytes_of_both_cores_by_purpose():
    # 130 tokens of 2 batches are 2 S-tiles on each core; all weights fit.
    assert measure.run(BATCH.plan).hbm == HbmBytes(
        weights=2 * 512 * 512,
        activations=2 * 130 * (512 + 4),
        channels=4 * 2 * 512 * (4 + 2),
        outputs=2 * 130 * 512 * 2,
    )


def test_streamed_weights_count_once_per_block():
    # 257 tokens in blocks of 2 S-tiles: 2 blocks.
    assert measure.run(CASE.plan).hbm.weights == 2 * 1152 * 768


def test_products_are_counted_on_the_tensor_engine():
    # Per S-tile: a product for each of 3 H-tiles x 2 banks, a transpose for each H-tile.
    assert measure.run(CASE.plan).instructions["tensor"] == 3 * (3 * 2 + 3)


def test_operands_without_values_have_the_sizes_of_the_case():
    for case in (CASE, BATCH, next(case for case in cases.CORNERS if case.bias_dtype is None)):
        real, empty = cases.normal_operands(case), measure.without_values(case.dims)
        for tensor, like in zip(empty.tensors, real.tensors, strict=True):
            assert (tensor is None) == (like is None)
            if tensor is not None:
                assert (tensor.shape, tensor.dtype, tensor.device.type) == (like.shape, like.dtype, "meta")


def test_sums_by_purpose():
    assert measure.add_hbm([HbmBytes(1, 2, 3, 4), HbmBytes(10, 20, 30, 40)]) == HbmBytes(11, 22, 33, 44)
    assert measure.add_hbm([]) == HbmBytes(0, 0, 0, 0)


def test_the_plan_moves_what_it_says():
    for case in cases.WAN22:
        planned = plan.make(case.dims, TRN3)
        assert measure.run(planned).hbm == planned.hbm, case.name

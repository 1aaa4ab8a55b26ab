"""Production shapes with values: minutes, so not part of a usual run."""

import pytest
import torch

import nki
from kernels.qkv_cte import cases, compare
from kernels.qkv_cte.cases import WAN22, Case
from kernels.qkv_cte.kernel import row_mx_projection

LARGE = (*WAN22, Case("tp1", 3, 5120, 40, "chunked", num_kv_heads=40, bias_dtype=torch.bfloat16))


@pytest.mark.parametrize("case", LARGE, ids=lambda case: case.name)
def test_values(case):
    operands = cases.normal_operands(case)
    result = nki.simulate(row_mx_projection[case.lnc])(*operands.tensors, case.plan.config)
    errors = compare.compare(result, *operands.tensors)
    print(case.name, errors)
    assert errors.wrong_nonfinite == 0
    assert errors.max_ulps <= compare.MAX_ULPS

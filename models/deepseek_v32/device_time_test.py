"""What is given beside predicted times, by hand; what cannot be served is refused."""

import pytest

from common.hardware import TRN2
from models.deepseek_v32 import device_time
from models.deepseek_v32.attention import Device
from models.deepseek_v32.config import PUBLISHED
from models.deepseek_v32.device_time import Serving
from models.deepseek_v32.tiny import TINY

SERVING = Serving(ranks=16, batch=16, context=4096, device=Device("trn2", 1))
CORES_PER_CHIP = 8


def bytes_of(us, serving=SERVING):
    """What a core of trn2 reads meanwhile."""
    return us / 1e6 * TRN2.hbm_bytes_per_s_per_chip / CORES_PER_CHIP * serving.device.lnc


def test_floors_are_bytes_over_bandwidth():
    """Of 7,168 wide layers in bf16, on one of 16 ranks."""
    dense = 3 * 7168 * 18_432 * 2 / 16
    assert bytes_of(device_time.mlp_floor_us(PUBLISHED, SERVING, dense=True)) == pytest.approx(dense)
    chosen = 256 * (1 - (1 - 8 / 256) ** 16)
    experts = (1 + chosen) * 3 * 7168 * 2048 * 2 / 16
    assert bytes_of(device_time.mlp_floor_us(PUBLISHED, SERVING, dense=False)) == pytest.approx(experts)
    assert bytes_of(device_time.head_floor_us(PUBLISHED, SERVING)) == pytest.approx(129_280 * 7168 * 2 / 16)
    queries, keys = 1536 * 64 * 128 + 1536 * 7168, 7168 * 128 + 16 * 4096 * 128
    assert bytes_of(device_time.indexer_floor_us(PUBLISHED, SERVING)) == pytest.approx(2 * (queries + keys))


def test_two_cores_have_twice_the_bandwidth():
    both = Serving(16, 16, 4096, Device("trn2", 2))
    one_us, two_us = (device_time.head_floor_us(PUBLISHED, serving) for serving in (SERVING, both))
    assert one_us == pytest.approx(2 * two_us)


def test_kernels_of_a_layer():
    """Two all-reduces, and none where there is one rank."""
    found = device_time.layer_kernels(TINY, Serving(2, 3, 100, Device("trn2", 2)))
    assert [(one.kernel, one.launches) for one in found] == [("prior index", 1), ("mla_decode", 1), ("all-reduce", 2)]
    alone = Serving(1, 3, 100, Device())
    assert [one.kernel for one in device_time.layer_kernels(TINY, alone)] == ["prior index", "mla_decode"]
    assert device_time.head_kernels(TINY, alone) == []


def test_the_prediction_runs_on_the_cores_that_a_step_has():
    """One head per rank and an odd batch: there is nothing to halve."""
    assert device_time.attention_plan(TINY, Serving(4, 3, 100, Device("trn2", 2))).dims.cores == 1
    assert device_time.attention_plan(TINY, Serving(2, 3, 100, Device("trn2", 2))).dims.cores == 2


@pytest.mark.parametrize(
    ("serving", "message"),
    [
        ((0, 1, 64), "ranks must be at least 1, got 0"),
        ((1, 0, 64), "batch must be at least 1, got 0"),
        ((1, 1, 0), "context must be at least 1, got 0"),
        ((16, 1, 6.5), "context must be an integer, got 6.5"),
        ((3, 1, 64), "num_attention_heads is 4; accepted over 3 ranks"),
        ((1, 129, 64), "n_tokens is 129; accepted: up to 128"),
        ((1, 1, 4097), "context is 4097; accepted: up to 4096, the model's"),
    ],
)
def test_refused(serving, message):
    ranks, batch, context = serving
    with pytest.raises((TypeError, ValueError), match=message):
        device_time.layer_kernels(TINY, Serving(ranks, batch, context, Device()))

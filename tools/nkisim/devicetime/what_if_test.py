"""What a kernel would gain, by hand: a load, two throttled products around an eviction, and a function of a table."""

import numpy as np
import pytest

from common import hardware
from devicetime import constants, scheduler
from devicetime.cost import GPSIMD, SCALAR, TENSOR, VECTOR, Machine
from devicetime.dependencies import DEPENDENCY, ORDER, REUSE
from devicetime.nodes import COMES, EDGE, NODE, TRANSFER, Work
from devicetime.predict import Prediction
from devicetime.what_if import what_if

C = constants.TRN2
MACHINE = Machine(hardware.TRN2, C)
EDGES = [(0, 1, COMES), (1, 2, DEPENDENCY), (2, 3, DEPENDENCY), (3, 4, REUSE), (4, 5, ORDER)]

ROWS = (
    {"track": GPSIMD, "hold_ns": 600, "done_ns": 600},
    {
        "track": TRANSFER,
        "hold_ns": 800,
        "done_ns": 800,
        "engines": 2,
        "ready_ns": 739,
        "stagger_ns": 20,
        "tail_ns": 500,
    },
    {"track": TENSOR, "hold_ns": 400, "done_ns": 565, "activity": 1},
    {"track": VECTOR, "hold_ns": 100, "done_ns": 200},
    {"track": TENSOR, "hold_ns": 400, "done_ns": 565, "activity": 1},
    {"track": SCALAR, "hold_ns": 300, "done_ns": 300, "table": 1},
)


def prediction(hbm_ns):
    """Of these rows one after the other, with bytes that HBM alone needs `hbm_ns` for."""
    nodes = np.zeros(len(ROWS), NODE)
    for number, row in enumerate(ROWS):
        nodes[number]["record"] = number
        for name, value in row.items():
            nodes[number][name] = value
    nodes["hbm_bytes"][1] = hbm_ns * C.hbm_pair_bytes_per_ns
    work = Work(nodes, np.array(EDGES, EDGE), 1)
    return Prediction(MACHINE, (), (), work, scheduler.schedule(work, C, 16))


def times(hbm_ns):
    made = prediction(hbm_ns)
    total = float(made.schedule["visible_ns"].max())
    answers = what_if(made)
    for answer in answers:
        assert answer.gain == pytest.approx(1 - answer.total_ns / total)
    return total, {answer.without: answer.total_ns for answer in answers}


PRODUCT = 800 + 165
"""At half rate, since the window before it has less than half its time in products; then the array drains."""

FUNCTION = C.scalar_table_load_ns + 300
LOADED = 739 + 20 + 800
"""The second engine's last byte: descriptors are there after 739 and 759 ns."""


def chain(loaded, wait=325, product=PRODUCT, evicted=200, function=FUNCTION, semaphore=268):
    """Load, product, eviction, product, function, and what each waits for the one before."""
    return loaded + wait + product + semaphore + evicted + semaphore + product + semaphore + function


def test_each_answer_by_hand():
    total, found = times(hbm_ns=500)
    assert total == pytest.approx(chain(LOADED))
    product_and_function = PRODUCT + 268 + FUNCTION
    assert found == {
        name: pytest.approx(ns)
        for name, ns in {
            "Tensor Engine": chain(LOADED, product=0),
            "Vector Engine": chain(LOADED, evicted=0),
            "Scalar Engine": chain(LOADED, function=0),
            # Bytes begin as soon as descriptors are fetched, on both engines.
            "GpSimd Engine": chain(448 + 800),
            # What is left is the last descriptor, made after 600 ns and moved 500 ns later.
            "DMA engines": chain(600 + 500),
            "bandwidth": chain(600 + 500),
            "HBM": chain(LOADED),
            "throttling": chain(LOADED, product=565),
            "queue": chain(800),
            "semaphore": chain(LOADED, wait=0, semaphore=0),
            # The first product runs beside the load; the eviction begins at once and makes the second one wait.
            "dependency": 800 + product_and_function,
            # The second product and the function run beside the load.
            "buffer_reuse": LOADED + 325 + PRODUCT + 268 + 200,
            "order": LOADED + 325 + PRODUCT + 268 + 200 + 268 + PRODUCT,
        }.items()
    }


def test_hbm_counts_where_it_is_slower_than_the_engines():
    total, found = times(hbm_ns=3000)
    assert total == pytest.approx(chain(739 + 3000))
    assert found["HBM"] == found["GpSimd Engine"] - 448 - 3000 + LOADED == pytest.approx(chain(LOADED))
    assert found["DMA engines"] == found["bandwidth"] == pytest.approx(chain(1100))


def test_engines_that_do_nothing_are_not_asked_about():
    assert not {"Sync Engine", "Collectives Engine"} & {answer.without for answer in what_if(prediction(500))}

"""Tables of the critical path and of what would help, of a kernel whose answer is known."""

import numpy as np

import nki.isa as nisa
import nki.language as nl
import nkisim
from devicetime import predict, report
from tools.timeline_report import where


def chain(a):
    """Each step needs the one before it: the Scalar Engine is all there is to win."""
    result = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=a)
    for _ in range(20):
        nisa.activation(dst=tile, op=nl.exp, data=tile)
    nisa.dma_copy(dst=result, src=tile)
    return result


def test_a_chain_of_one_engine():
    run = nkisim.run(chain, np.zeros((128, 2048), np.float32), options=nkisim.Options(numerics=False))
    prediction = predict.explain(run, "trn2")
    timeline = report.timeline(prediction)
    calls, lines, gains = where.tables(prediction, timeline)
    assert calls.rows[0][0] == "activation on Scalar"
    assert lines.rows[0][0].startswith("where_test.py:")
    of_all = sum(float(row[2].removesuffix("%")) for row in calls.rows)
    assert abs(of_all - 100) < 1
    assert "Scalar" in gains.rows[0][0]
    shown = {row[0]: row for row in gains.rows}
    assert float(gains.rows[0][2].removesuffix("%")) > 50
    assert shown["buffer reuse"][2] == "none"

"""A minute of fuzzing with fixed seeds, and whether the fuzzer sees faults that are put in on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fuzz import main
from fuzz.session import MismatchError
from nkisim import views
from nkisim.collectives import group, whole
from nkisim.isa import dma_transpose, matmul_mx
from nkisim.language import iteration
from nkisim.numerics import cast, mx
from nkisim.storage import Storage
from nkisim.views import View

CASES = {"differential": 400, "collectives": 250, "hostile": 500}


@pytest.mark.parametrize("kind", sorted(CASES))
def test_a_minute_of_cases(kind: str) -> None:
    count = main.Count()
    main.batch(main.CASES[kind], 1, CASES[kind], count)
    assert count.cases >= CASES[kind]
    assert count.calls > count.cases


def _off_by_an_ulp(original: Callable[..., None]) -> Callable[..., None]:
    def store(target: np.ndarray, values: np.ndarray, dtype: Any) -> None:
        original(target, values, dtype)
        if target.dtype == np.float16 and values.dtype == np.float32:
            target.flat[0] = np.nextafter(target.flat[0], np.float16(0))

    return store


def _one_too_many(original: Callable[..., View]) -> Callable[..., View]:
    def permute(view: View, dims: Any, on_chip: bool) -> View:
        found = original(view, dims, on_chip)
        return found._replace(offset=found.offset + 1) if len(found.shape) > 2 and found.shape[-1] == 1 else found

    return permute


def _forgetful(original: Callable[..., None]) -> Callable[..., None]:
    return lambda storage, region: None if region.offset else original(storage, region)


def _rounded_up(original: Callable[..., Any]) -> Callable[..., Any]:
    def quantize(values: np.ndarray, kind: Any) -> tuple[np.ndarray, np.ndarray]:
        words, scales = original(values, kind)
        return words, np.minimum(scales, 253) + np.uint8(1)

    return quantize


def _of_other_rows(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *given: np.roll(original(*given), 1, axis=0)


def _unturned(original: dict[int, Any]) -> dict[int, Any]:
    return original | {3: (2, 0, 1), 4: (3, 2, 1, 0)}


def _backwards(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda arrays, op: original(arrays[::-1], op)


def _once_less(original: Callable[..., Any]) -> Callable[..., Any]:
    def counted(*given: Any) -> tuple[Any, range]:
        core, values = original(*given)
        return core, values[:-1] if len(values) > 1 else values

    return counted


FAULTS: dict[str, tuple[str, Any, str, Callable[..., Any]]] = {
    "a cast off by an ulp": ("differential", cast, "store", _off_by_an_ulp),
    "a view that starts an element late": ("differential", views, "permute", _one_too_many),
    "writes that are not noted": ("differential", Storage, "mark_written", _forgetful),
    "block scales rounded up": ("differential", mx, "quantize", _rounded_up),
    "block scales of other rows": ("differential", matmul_mx, "_exponents", _of_other_rows),
    "a transpose by DMA of other axes": ("differential", dma_transpose, "_AXES", _unturned),
    "a loop that ends early": ("differential", iteration, "_counted", _once_less),
    "ranks added in another order": ("collectives", whole, "reduced", _backwards),
    "a split along other rows": ("collectives", group, "members", lambda original: lambda *g: original(*g)[::-1]),
}


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_the_fuzzer_sees_a_fault(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, owner, name, broken = FAULTS[fault]
    monkeypatch.setattr(owner, name, broken(getattr(owner, name)))
    with pytest.raises(MismatchError) as caught:
        main.batch(main.CASES[kind], 1, 500, main.Count(), shrink=False)
    assert "def kernel(" in str(caught.value)


def test_the_hostile_fuzzer_sees_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def check_dim(dim: Any, rank: int, call: str) -> int:
        return range(rank)[dim]

    monkeypatch.setattr(views, "check_dim", check_dim)
    with pytest.raises(MismatchError, match=r"raised (IndexError|TypeError)"):
        main.batch(main.CASES["hostile"], 1, 300, main.Count(), shrink=False)

"""A minute of fuzzing with fixed seeds, and whether the fuzzer sees faults that are put in on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fuzz import main
from fuzz.session import MismatchError
from nkisim import views
from nkisim.numerics import cast
from nkisim.storage import Storage
from nkisim.views import View

CASES = {"differential": 500, "hostile": 700}


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


FAULTS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "a cast off by an ulp": (cast, "store", _off_by_an_ulp),
    "a view that starts an element late": (views, "permute", _one_too_many),
    "writes that are not noted": (Storage, "mark_written", _forgetful),
}


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_the_differential_fuzzer_sees_a_fault(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, broken = FAULTS[fault]
    monkeypatch.setattr(owner, name, broken(getattr(owner, name)))
    with pytest.raises(MismatchError) as caught:
        main.batch(main.CASES["differential"], 1, 300, main.Count(), shrink=False)
    assert "def kernel(" in str(caught.value)


def test_the_hostile_fuzzer_sees_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def check_dim(dim: Any, rank: int, call: str) -> int:
        return range(rank)[dim]

    monkeypatch.setattr(views, "check_dim", check_dim)
    with pytest.raises(MismatchError, match=r"raised (IndexError|TypeError)"):
        main.batch(main.CASES["hostile"], 1, 300, main.Count(), shrink=False)

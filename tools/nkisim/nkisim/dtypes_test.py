"""Data types as values: copied and stored, as drivers and tests of kernels do with configurations that hold them."""

from __future__ import annotations

import copy
import pickle

import pytest

from nkisim import dtypes


@pytest.mark.parametrize("name", dtypes.ALL)
def test_a_copy_is_the_type_itself(name: str) -> None:
    kind = dtypes.as_dtype(name)
    assert copy.copy(kind) is kind
    assert copy.deepcopy({"dtype": [kind]})["dtype"][0] is kind
    assert pickle.loads(pickle.dumps(kind)) is kind

"""Scalars of Python and numpy that no engine knows as they are, in instructions and functions of the language."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nki.isa
import nki.language
from nkisim import Options, run
from nkisim.errors import ArgumentError, RegisterError

nisa: Any = nki.isa
nl: Any = nki.language


_NO_NUMBERS = [np.str_("a"), np.bytes_(b"a"), np.complex64(1), np.datetime64(1, "s"), np.timedelta64(1, "s")]
_WITH_A_SCALAR: list[Any] = [
    lambda t, v: nisa.tensor_scalar(t, t, nl.add, v),
    lambda t, v: nisa.memset(t, v),
    lambda t, v: nisa.activation(t, nl.exp, t, scale=v),
    lambda t, v: nisa.affine_select(t, [[1, 4]], 1, t, v),
    lambda t, v: nisa.iota(t, [[1, 4]], v),
    lambda t, v: nisa.exponential(t, t, v),
    lambda t, v: nl.divide(t, v),
    lambda t, v: nl.mod(t, v),
    lambda t, v: nl.full((2, 4), v, nl.float32),
    lambda t, v: nl.full((2, 4), v, nl.int32),
    lambda t, v: nl.rms_norm(t, t, 1, 4, epsilon=v),
]


@pytest.mark.parametrize("given", _NO_NUMBERS)
@pytest.mark.parametrize("call", _WITH_A_SCALAR)
def test_scalars_of_numpy_that_are_no_numbers_are_refused(call: Any, given: Any) -> None:
    def kernel() -> None:
        tile = nl.ndarray((2, 4), nl.float32)
        nisa.memset(tile, 1.0)
        call(tile, given)

    with pytest.raises(ArgumentError, match="accepted: "):
        run(kernel, options=Options(target="trn3"))


@pytest.mark.parametrize("sign", [1, -1])
def test_integers_beyond_every_float_are_infinite(sign: int) -> None:
    def kernel() -> Any:
        tile = nl.ndarray((2, 4), nl.float32)
        nisa.memset(tile, 1.0)
        nisa.tensor_scalar(tile, tile, nl.add, sign * 10**400)
        out = nl.ndarray((2, 4), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(out, tile)
        return out

    np.testing.assert_array_equal(run(kernel, options=Options(target="trn3")).outputs, np.full((2, 4), sign * np.inf))


@pytest.mark.parametrize(("held", "expected"), [(2.9, 2), (-2.9, -2), (4e9, 4_000_000_000), (-(2.0**31), -(2**31))])
def test_floats_are_loaded_into_registers_towards_zero(held: float, expected: int) -> None:
    assert _loaded(held) == expected


@pytest.mark.parametrize("held", [np.nan, np.inf, -np.inf, 2.0**32, -3e9])
def test_what_32_bits_do_not_hold_is_not_loaded_into_a_register(held: float) -> None:
    with pytest.raises(RegisterError, match=r"src holds .*; accepted: what 32 bits hold"):
        _loaded(held)


def _loaded(held: float) -> int:
    found = []

    def kernel() -> None:
        element, register = nl.ndarray((1, 1), nl.float32), nisa.register_alloc()
        nisa.memset(element, held)
        nisa.register_load(register, element)
        found.append(register.value("test"))

    run(kernel, options=Options(target="trn3"))
    return found[0]

"""Ledgers: addresses, limits, scopes and what their refusals say."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.budget import BudgetError, PsumLedger, SbufLedger
from common.hardware import TRN2, TRN3


def test_addresses_follow_each_other_and_padding_is_counted():
    ledger = SbufLedger(TRN3)
    first = ledger.allocate("bias", 5)
    second = ledger.allocate("scales", 8)
    third = ledger.allocate("aligned", 1, alignment_bytes=32)
    assert (first.address_bytes, first.padding_bytes) == (0, 0)
    assert (second.address_bytes, second.padding_bytes) == (8, 3)
    assert (third.address_bytes, third.padding_bytes) == (32, 16)
    assert ledger.used_bytes == ledger.peak_bytes == 33
    assert ledger.free_bytes == TRN3.sbuf_usable_bytes_per_partition - 33


@pytest.mark.parametrize("hardware", [TRN2, TRN3], ids=lambda hardware: hardware.name)
def test_the_last_byte_can_be_used_and_no_more(hardware):
    ledger = SbufLedger(hardware)
    ledger.allocate("all but four", hardware.sbuf_usable_bytes_per_partition - 4)
    with pytest.raises(BudgetError):
        ledger.allocate("five", 5)
    ledger.allocate("four", 4)
    assert ledger.free_bytes == 0


def test_a_refusal_names_request_free_bytes_and_largest_holders():
    ledger = SbufLedger(TRN2)
    for index, size in enumerate([10_000, 30_000, 20_000, 50_000, 40_000, 1_000, 2_001]):
        ledger.allocate(f"t{index}", size)
    with pytest.raises(BudgetError) as refusal:
        ledger.allocate("weights", 100_000)
    assert str(refusal.value) == (
        "SBUF of trn2: 'weights' needs 100,000 B per partition after 3 B of padding, "
        "free are 59,983 B of 212,984 B; "
        "largest holders: t3 50,000 B, t4 40,000 B, t1 30,000 B, t2 20,000 B, t0 10,000 B"
    )
    assert isinstance(refusal.value, ValueError)
    assert "weights" not in str(ledger.freeze())


def test_a_refusal_of_the_first_request():
    with pytest.raises(BudgetError, match="nothing is allocated yet"):
        SbufLedger(TRN2).allocate("everything", 10**6)


def test_scopes_free_on_exit_and_stay_in_the_map():
    ledger = SbufLedger(TRN3)
    ledger.allocate("output", 100)
    with ledger.scope("apply pass"):
        gamma = ledger.allocate("gamma", 400)
        with ledger.scope("rope"):
            ledger.allocate("cos", 200)
        assert ledger.used_bytes == 500
    again = ledger.allocate("square", 40)
    assert again.address_bytes == gamma.address_bytes == 100
    assert [allocation.name for allocation in ledger.live] == ["output", "square"]
    memory_map = ledger.freeze()
    assert memory_map.peak_bytes == ledger.peak_bytes == 700
    assert [allocation.name for allocation in memory_map.allocations] == ["output", "gamma", "cos", "square"]
    assert memory_map["cos"].scope == "apply pass / rope"
    assert memory_map["square"].scope == ""


def test_a_scope_frees_after_an_exception():
    ledger = SbufLedger(TRN3)

    def overfill():
        with ledger.scope("too much"):
            ledger.allocate("some", 1000)
            ledger.allocate("rest", 10**6)

    with pytest.raises(BudgetError):
        overfill()
    assert ledger.used_bytes == 0
    assert ledger.allocate("next", 4).scope == ""


def test_names_are_unique_even_after_their_scope():
    ledger = SbufLedger(TRN3)
    with ledger.scope("first"):
        ledger.allocate("tile", 4)
    with pytest.raises(ValueError, match="SBUF of trn3: name 'tile' is taken"):
        ledger.allocate("tile", 4)


def test_the_map_prints_as_an_aligned_table():
    ledger = SbufLedger(TRN2)
    ledger.allocate("bias", 5)
    with ledger.scope("apply pass"):
        ledger.allocate("gamma", 21_298)
    assert str(ledger.freeze()).splitlines() == [
        "SBUF of trn2, bytes per partition, 212,984 usable",
        "name   address    bytes  padding  share  until",
        "bias         0        5        0   0.0%  end",
        "gamma        8   21,298        3  10.0%  end of apply pass",
        "peak             21,306           10.0%",
        "free            191,678           90.0%",
    ]


def test_the_map_is_a_snapshot_and_names_what_it_has():
    ledger = SbufLedger(TRN2)
    ledger.allocate("bias", 4)
    memory_map = ledger.freeze()
    ledger.allocate("later", 4)
    assert memory_map["bias"].address_bytes == 0
    assert memory_map.peak_bytes == 4
    with pytest.raises(KeyError, match="no SBUF of trn2 allocation 'later'; there are: bias"):
        memory_map["later"]


def test_explicit_addresses_are_checked_against_the_capacity():
    ledger = SbufLedger(TRN3)
    ledger.check("x", 241_752, 4_000)
    with pytest.raises(BudgetError) as refusal:
        ledger.check("x", 400_000, 4_000)
    assert str(refusal.value) == (
        "SBUF of trn3: 'x' at address 400,000 with 4,000 B per partition ends at 404,000, beyond the 245,752 B usable"
    )
    with pytest.raises(BudgetError):
        ledger.check("x", 241_753, 4_000)


def test_psum_gives_eight_distinct_banks_and_refuses_a_ninth():
    ledger = PsumLedger(TRN3)
    accumulators = [ledger.allocate(f"acc{index}") for index in range(4)]
    assert [allocation.bank for allocation in accumulators] == [0, 1, 2, 3]
    assert [allocation.address_bytes for allocation in accumulators] == [0, 2048, 4096, 6144]
    wide = ledger.allocate("wide", banks=4)
    assert (wide.bank, wide.banks, wide.bytes_per_partition) == (4, 4, 8192)
    assert ledger.free_bytes == 0
    with pytest.raises(BudgetError) as refusal:
        ledger.allocate("ninth")
    assert str(refusal.value) == (
        "PSUM of trn3: 'ninth' needs 1 bank per partition, free are 0 banks of 8 banks; "
        "largest holders: wide 4 banks, acc0 1 bank, acc1 1 bank, acc2 1 bank, acc3 1 bank"
    )


def test_psum_scope():
    ledger = PsumLedger(TRN2)
    with ledger.scope("block 0"):
        ledger.allocate("acc", banks=8)
    assert ledger.free_bytes == TRN2.psum_bytes_per_partition
    assert ledger.freeze().peak_bytes == TRN2.psum_bytes_per_partition


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: SbufLedger(TRN2).allocate("x", 0),
            ValueError,
            "bytes_per_partition must be at least 1, got 0",
        ),
        (lambda: SbufLedger(TRN2).allocate("x", 1.5), TypeError, "bytes_per_partition must be an integer"),  # type: ignore[arg-type]
        (
            lambda: SbufLedger(TRN2).allocate("x", 4, 3),
            ValueError,
            "alignment_bytes must be a power of two, got 3",
        ),
        (lambda: SbufLedger(TRN2).check("x", -4, 4), ValueError, "address_bytes must be at least 0, got -4"),
        (
            lambda: SbufLedger(TRN2).check("x", 4, 0),
            ValueError,
            "bytes_per_partition must be at least 1, got 0",
        ),
        (lambda: SbufLedger("trn3"), TypeError, "hardware must be a Hardware, got 'trn3' of type str"),  # type: ignore[arg-type]
        (lambda: PsumLedger(None), TypeError, "hardware must be a Hardware, got None of type NoneType"),  # type: ignore[arg-type]
        (lambda: SbufLedger(TRN2).allocate(3, 4), TypeError, "name must be a str, got 3 of type int"),  # type: ignore[arg-type]
        (lambda: SbufLedger(TRN2).allocate(["x"], 4), TypeError, "name must be a str, got .* of type list"),  # type: ignore[arg-type]
        (lambda: SbufLedger(TRN2).check(b"x", 0, 4), TypeError, "name must be a str, got b'x' of type bytes"),  # type: ignore[arg-type]
        (lambda: PsumLedger(TRN2).allocate(None), TypeError, "name must be a str, got None of type NoneType"),  # type: ignore[arg-type]
        (lambda: PsumLedger(TRN2).allocate("x", 0), ValueError, "banks must be at least 1, got 0"),
    ],
)
def test_bad_arguments_are_refused_by_name(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_a_scope_without_a_string_for_a_name_is_not_entered():
    ledger = SbufLedger(TRN2)
    with pytest.raises(TypeError, match="name must be a str, got 3 of type int"), ledger.scope(3):  # type: ignore[arg-type]
        pass
    assert ledger.allocate("x", 4).scope == ""


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("allocate"), st.integers(1, 60_000), st.sampled_from([1, 2, 4, 32, 64])),
        st.just(("open",)),
        st.just(("close",)),
    ),
    max_size=30,
)


@settings(max_examples=500, derandomize=True, deadline=None)
@given(steps=_STEPS)
def test_live_allocations_never_overlap_and_the_peak_is_the_highest_end(steps):
    ledger = SbufLedger(TRN3)
    open_scopes = []
    live: list[list[tuple[int, int]]] = [[]]
    highest_end = 0
    for index, step in enumerate(steps):
        if step[0] == "open":
            open_scopes.append(ledger.scope(f"scope {index}"))
            open_scopes[-1].__enter__()
            live.append([])
        elif step[0] == "close" and open_scopes:
            open_scopes.pop().__exit__(None, None, None)
            live.pop()
        elif step[0] == "allocate":
            _, size, alignment = step
            top = max((end for ranges in live for _, end in ranges), default=0)
            start = math.ceil(top / alignment) * alignment
            if start + size > TRN3.sbuf_usable_bytes_per_partition:
                with pytest.raises(BudgetError):
                    ledger.allocate(str(index), size, alignment)
                continue
            allocation = ledger.allocate(str(index), size, alignment)
            assert (allocation.address_bytes, allocation.end_bytes) == (start, start + size)
            assert allocation.padding_bytes == start - top
            live[-1].append((start, start + size))
            highest_end = max(highest_end, start + size)
        assert ledger.used_bytes == max((end for ranges in live for _, end in ranges), default=0)
    assert ledger.peak_bytes == ledger.freeze().peak_bytes == highest_end

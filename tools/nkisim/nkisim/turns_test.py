"""Tests of how cores and ranks take turns."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nkisim.errors import DeadlockError
from nkisim.turns import Turns

Body = Callable[[], None]


def started(bodies: list[Body]) -> Turns:
    return Turns([(f"core {n}", body) for n, body in enumerate(bodies)], lambda: None)


def test_each_body_runs_to_its_end_in_order() -> None:
    log: list[int] = []
    started([lambda n=n: log.extend([n, n]) for n in range(4)]).run()  # type: ignore[misc]
    assert log == [0, 0, 1, 1, 2, 2, 3, 3]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(1, 4))
def test_barriers_let_nobody_ahead_and_every_run_is_the_same(work: list[int], barriers: int) -> None:
    def once() -> list[tuple[int, int]]:
        log: list[tuple[int, int]] = []
        arrived = [0] * len(work)
        running: list[int] = []

        def all_past(stage: int) -> bool:
            return min(arrived) > stage

        def body(me: int) -> None:
            for stage in range(barriers):
                for _ in range(work[me]):
                    running.append(me)
                    assert running == [me]
                    log.append((stage, me))
                    running.pop()
                arrived[me] += 1
                turns.wait(functools.partial(all_past, stage), "the others")

        turns = started([lambda n=n: body(n) for n in range(len(work))])  # type: ignore[misc]
        turns.run()
        return log

    log = once()
    assert [stage for stage, _ in log] == sorted(stage for stage, _ in log)
    assert log == once()


def test_a_condition_that_holds_gives_no_turn_away() -> None:
    log: list[str] = []

    def first() -> None:
        turns.wait(lambda: True, "nothing")
        log.append("first")

    turns = started([first, lambda: log.append("second")])
    turns.run()
    assert log == ["first", "second"]


def test_a_deadlock_says_who_waits_for_what() -> None:
    turns = started(
        [
            lambda: turns.wait(lambda: False, "core 1 at barrier 3"),
            lambda: turns.wait(lambda: False, "core 0 at barrier 4"),
            lambda: None,
        ]
    )
    with pytest.raises(DeadlockError) as caught:
        turns.run()
    assert "core 0 waits for core 1 at barrier 3; core 1 waits for core 0 at barrier 4" in str(caught.value)
    assert "core 2 finished without it" in str(caught.value)


def test_the_first_error_is_raised_with_its_core_and_ends_the_others() -> None:
    reached = []

    def waits() -> None:
        try:
            turns.wait(lambda: False, "what never comes")
        finally:
            reached.append("unwound")
        reached.append("went on")

    def fails() -> None:
        raise KeyError("of the kernel")

    turns = started([waits, fails, lambda: reached.append("third")])
    with pytest.raises(KeyError, match="of the kernel") as caught:
        turns.run()
    assert caught.value.__notes__ == ["in core 1"]
    assert reached == ["unwound"]
    assert not any(thread.name.startswith("core ") for thread in threading.enumerate())


def test_what_another_process_brings_is_no_deadlock() -> None:
    looks = 0

    def ready() -> bool:
        nonlocal looks
        looks += 1
        return looks > 5

    turns = started([lambda: turns.wait(ready, "another process", outside=True)])
    turns.run()
    assert looks > 5

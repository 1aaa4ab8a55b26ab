"""One case of the fuzzer: a kernel of random instructions, replayed without numerics; in the end hostile calls."""

from __future__ import annotations

from hypothesis import strategies as st

from fuzz.hostile import hostile_call
from fuzz.instructions import INSTRUCTIONS
from fuzz.session import MismatchError, Session, shown
from fuzz.view_model import Draw

MAX_INSTRUCTIONS = 8
MAX_HOSTILE = 6


def differential(draw: Draw) -> int:
    """A kernel against the oracle, and its records against those of a timing-only run; returns its instructions.

    Raises:
        MismatchError: says where they differ, with the kernel as a program.
    """
    session = Session(draw, draw(st.sampled_from(("trn3", "trn3", "trn2"))), draw(st.integers(0, 255)))

    def body(session: Session) -> None:
        for _ in range(draw(st.integers(1, MAX_INSTRUCTIONS))):
            session.sample(INSTRUCTIONS)(session)

    stream = session.run(body)
    if not session.refusals:
        replayed = session.replay()
        if [shown(r) for r in stream] != [shown(r) for r in replayed]:
            raise MismatchError(f"a timing-only run records other instructions\n{session.source()}")
    return session.calls


def hostile(draw: Draw) -> int:
    """Calls with arguments that make no sense; returns how many.

    Raises:
        MismatchError: the simulator raised an error that is none of its own.
    """
    session = Session(draw, draw(st.sampled_from(("trn3", "trn2"))), draw(st.integers(0, 255)))

    def body(session: Session) -> None:
        for _ in range(draw(st.integers(1, MAX_HOSTILE))):
            hostile_call(session)

    session.run_hostile(body)
    return session.calls

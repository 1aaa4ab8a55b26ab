"""Runs the cores of every rank one at a time, so that every run is the same run.

Each core has a thread, and one of them has the turn. A core gives it up only where the hardware would wait for
another core or rank; when all of them wait, that is a deadlock and says who waits for what. Where a core waits for
another process there is no telling, so the others' conditions are looked at again until one holds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from nkisim.errors import DeadlockError

POLL_SECONDS = 0.001
"""Between two looks at what another process may have brought."""


class _Abandoned(BaseException):
    """Unwinds a core because another one failed."""


@dataclass
class _Worker:
    name: str
    body: Callable[[], None]
    turn: threading.Event
    ready: Callable[[], bool] | None = None
    waits_for: object = ""
    outside: bool = False
    finished: bool = False
    error: BaseException | None = None
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def runnable(self) -> bool:
        return not self.finished and (self.ready is None or self.ready())


class Turns:
    """Gives turns to named bodies until all have finished."""

    def __init__(self, bodies: Sequence[tuple[str, Callable[[], None]]], stop: Callable[[], object]) -> None:
        self._stop = stop
        self._workers = [_Worker(name, body, threading.Event()) for name, body in bodies]
        self._running = 0
        self._abandoned = False

    def run(self) -> None:
        """Runs every body to its end; raises what the first failing one raised, with a note that names it."""
        threads = [threading.Thread(target=self._work, args=(w,), name=w.name, daemon=True) for w in self._workers]
        for thread in threads:
            thread.start()
        self._workers[0].turn.set()
        try:
            self._wait_for_all()
        except BaseException:
            self._abandoned = True
            self._stop()
            for worker in self._workers:
                worker.turn.set()
            self._wait_for_all()
            raise
        errors = [w.error for w in self._workers if w.error is not None and not isinstance(w.error, _Abandoned)]
        if errors:
            raise errors[0]

    def _wait_for_all(self) -> None:
        """Joining would do, but a join that is interrupted takes its thread for ended."""
        for worker in self._workers:
            worker.ended.wait()

    def wait(self, ready: Callable[[], bool], waits_for: object, *, outside: bool = False) -> None:
        """Called by the body that has the turn: returns once `ready()`, letting the others run meanwhile.

        Args:
            ready: the condition; it raises nothing.
            waits_for: what is said of it in a deadlock, worked out with `str` only then.
            outside: another process makes it come true, if only by being late; it is then no deadlock.

        Raises:
            DeadlockError: every body waits, and none is ready.
        """
        if self._abandoned:
            raise _Abandoned
        if ready():
            return
        me = self._workers[self._running]
        me.ready, me.waits_for, me.outside = ready, waits_for, outside
        self._pass_on()
        me.turn.wait()
        me.turn.clear()
        if self._abandoned:
            raise _Abandoned
        me.ready, me.outside = None, False
        if not ready():
            raise DeadlockError(self._who_waits())

    def _work(self, worker: _Worker) -> None:
        worker.turn.wait()
        worker.turn.clear()
        if not self._abandoned:
            try:
                worker.body()
            except BaseException as error:  # noqa: BLE001 - carried to run()
                if not isinstance(error, _Abandoned):
                    error.add_note(f"in {worker.name}")
                worker.error = error
                self._abandoned = True
        worker.finished = True
        self._pass_on()
        worker.ended.set()

    def _pass_on(self) -> None:
        count = len(self._workers)
        order = [(self._running + step) % count for step in range(1, count + 1)]
        candidates = [i for i in order if not self._workers[i].finished]
        if not candidates:
            return
        self._running = self._next(candidates)
        self._workers[self._running].turn.set()

    def _next(self, candidates: list[int]) -> int:
        """Who runs now; the first one, which then reports the deadlock, where nobody can."""
        while not self._abandoned:
            runnable = next((i for i in candidates if self._workers[i].runnable), None)
            if runnable is not None:
                return runnable
            if not any(self._workers[i].outside for i in candidates):
                break
            time.sleep(POLL_SECONDS)
        return candidates[0]

    def _who_waits(self) -> str:
        lines = [f"{w.name} waits for {w.waits_for}" for w in self._workers if not w.finished]
        done = [w.name for w in self._workers if w.finished]
        if done:
            lines.append(f"{', '.join(done)} finished without it")
        return "; ".join(lines)

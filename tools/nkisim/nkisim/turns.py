"""Runs the cores of a launch one at a time, so that every run is the same run.

Each core has a thread, and one of them has the turn. A core gives it up only where the hardware would wait for
another core; when all of them wait, that is a deadlock and says who waits for what.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nkisim.errors import DeadlockError


class _Abandoned(BaseException):
    """Unwinds a core because another one failed."""


@dataclass
class _Worker:
    name: str
    body: Callable[[], None]
    turn: threading.Event
    ready: Callable[[], bool] | None = None
    waits_for: str = ""
    finished: bool = False
    error: BaseException | None = None

    @property
    def runnable(self) -> bool:
        return not self.finished and (self.ready is None or self.ready())


class Turns:
    """Gives turns to named bodies until all have finished."""

    def __init__(self, bodies: Sequence[tuple[str, Callable[[], None]]]) -> None:
        self._workers = [_Worker(name, body, threading.Event()) for name, body in bodies]
        self._running = 0
        self._abandoned = False

    def run(self) -> None:
        """Runs every body to its end; raises what the first failing one raised."""
        threads = [threading.Thread(target=self._work, args=(w,), name=w.name) for w in self._workers]
        for thread in threads:
            thread.start()
        self._workers[0].turn.set()
        for thread in threads:
            thread.join()
        errors = [w.error for w in self._workers if w.error is not None and not isinstance(w.error, _Abandoned)]
        if errors:
            raise errors[0]

    def wait(self, ready: Callable[[], bool], waits_for: str) -> None:
        """Called by the body that has the turn: returns once `ready()`, letting the others run meanwhile.

        Raises:
            DeadlockError: every body waits, and none is ready.
        """
        if ready():
            return
        me = self._workers[self._running]
        me.ready, me.waits_for = ready, waits_for
        self._pass_on()
        me.turn.wait()
        me.turn.clear()
        if self._abandoned:
            raise _Abandoned
        me.ready = None
        if not ready():
            raise DeadlockError(self._who_waits())

    def _work(self, worker: _Worker) -> None:
        worker.turn.wait()
        worker.turn.clear()
        if not self._abandoned:
            try:
                worker.body()
            except BaseException as error:  # noqa: BLE001 - carried to run()
                worker.error = error
                self._abandoned = True
        worker.finished = True
        self._pass_on()

    def _pass_on(self) -> None:
        count = len(self._workers)
        order = [(self._running + step) % count for step in range(1, count + 1)]
        candidates = [i for i in order if not self._workers[i].finished]
        if not candidates:
            return
        chosen = next((i for i in candidates if self._abandoned or self._workers[i].runnable), candidates[0])
        self._running = chosen
        self._workers[chosen].turn.set()

    def _who_waits(self) -> str:
        lines = [f"{w.name} waits for {w.waits_for}" for w in self._workers if not w.finished]
        done = [w.name for w in self._workers if w.finished]
        if done:
            lines.append(f"{', '.join(done)} finished without it")
        return "; ".join(lines)

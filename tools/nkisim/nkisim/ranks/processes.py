"""Ranks that live in one process each and meet over torch.distributed.

Terms of a collective travel through the group's key-value store, which can be looked at without blocking, so that a
rank sees who has finished, failed or not arrived; data travels point to point over gloo.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from nkisim.dtypes import as_dtype
from nkisim.errors import DeadlockError, LaunchError, NkiValidationError, RankFailedError
from nkisim.ranks.meeting import Meeting, Offer, Wait, name_ranks
from nkisim.turns import POLL_SECONDS

T = TypeVar("T")
_ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_FAREWELL_SECONDS = 2.0
"""How long a failed rank stays, so that the others can read why; rank 0 may keep the store."""

_runs: Counter[tuple[int, ...]] = Counter()
_tags = itertools.count()
"""A tag for every payload this process sends, never used again: what a failed run left behind matches nothing."""


class ProcessWorld:
    """The ranks of a process group for one run; a context manager that ends once every rank has.

    Attributes:
        rank, size: of this process in the group.
    """

    def __init__(self, group: Any, timeout_seconds: float) -> None:
        """Joins a group, or makes the default one from the environment where `group` is None and there is none."""
        self._timeout_seconds = timeout_seconds
        if group is None and not dist.is_initialized():
            _initialise(timeout_seconds)
        self._group = group
        if dist.get_backend(group) != "gloo":
            raise LaunchError(f"process group with backend {dist.get_backend(group)}; accepted: gloo")
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise LaunchError("this process is not part of the process group; accepted: a group that it belongs to")
        self._global_ranks = tuple(dist.get_process_group_ranks(group))
        prefix = f"nkisim/{'-'.join(map(str, self._global_ranks))}/{_runs[self._global_ranks]}"
        _runs[self._global_ranks] += 1
        self._store = dist.PrefixStore(prefix, dist.distributed_c10d._get_default_store())
        self._rounds: Counter[str] = Counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Tells the others how it ended, and hears it from them.

        Raises:
            RankFailedError, DeadlockError: this rank succeeded, another did not.
        """
        if error is None:
            self._ask(lambda: self._store.set(f"end/{self.rank}", ""))
            self._await_ends()
            return
        try:
            self._store.set(f"end/{self.rank}", f"{type(error).__name__}: {error}")
            deadline = time.monotonic() + min(_FAREWELL_SECONDS, self._timeout_seconds)
            while time.monotonic() < deadline and not self._store.check([f"end/{r}" for r in range(self.size)]):
                time.sleep(POLL_SECONDS)
        except RuntimeError:
            pass  # The store is gone, and with it whoever would have listened.

    def meet(self, wait: Wait, lane: str, members: tuple[int, ...], offer: Offer) -> Meeting:
        """See `World.meet`.

        Raises:
            DivergenceError, DeadlockError, RankFailedError.
        """
        meeting = Meeting(members)
        meeting.add(offer)
        if meeting.complete:
            return meeting
        key = f"{lane}/{'-'.join(map(str, sorted(members)))}"
        key, self._rounds[key] = f"{key}/{self._rounds[key]}", self._rounds[key] + 1
        tag = next(_tags)
        self._post(key, offer, tag)
        arrivals = _Arrivals(self, meeting, key)
        wait(arrivals.settled, meeting, outside=True)
        if arrivals.error is not None:
            raise arrivals.error
        self._ask(lambda: self._store.set(f"waits/{self.rank}", ""))
        self._exchange(offer, tag, arrivals.posts)
        return meeting

    def _post(self, key: str, offer: Offer, tag: int) -> None:
        layout = [[str(a.dtype), list(a.shape)] for a in offer.payload]
        post = json.dumps({"terms": offer.terms, "layout": layout, "tag": tag})
        self._ask(lambda: self._store.set(f"{key}/{self.rank}", post))

    def _exchange(self, offer: Offer, tag: int, posts: dict[int, Any]) -> None:
        """Sends the payload to every other member and fills theirs, which the meeting holds already."""
        works = []
        outgoing = [torch.from_numpy(np.ascontiguousarray(a).reshape(-1).view(np.uint8)) for a in offer.payload]
        try:
            for rank, (their_tag, arrays) in posts.items():
                peer = self._global_ranks[rank]
                works += [
                    dist.irecv(
                        torch.from_numpy(a.reshape(-1).view(np.uint8)), src=peer, group=self._group, tag=their_tag
                    )
                    for a in arrays
                    if a.size
                ]
                works += [dist.isend(data, dst=peer, group=self._group, tag=tag) for data in outgoing if data.numel()]
            for work in works:
                work.wait(timedelta(seconds=self._timeout_seconds))
        except RuntimeError as error:
            raise RankFailedError(
                f"{offer.terms['call']} over {name_ranks(sorted([self.rank, *posts]))}: rank {self.rank} could not "
                f"exchange data with {name_ranks(sorted(posts))}: {_first_line(error)}"
            ) from None

    def ended(self, rank: int) -> str | None:
        """None while the rank runs, "" once it has finished, otherwise its error."""
        if not self._ask(lambda: self._store.check([f"end/{rank}"])):
            return None
        return self._ask(lambda: self._store.get(f"end/{rank}")).decode()

    def find_post(self, key: str, rank: int) -> dict[str, Any] | None:
        """What a rank brought to the meeting `key`, if it is there."""
        name = f"{key}/{rank}"
        if not self._ask(lambda: self._store.check([name])):
            return None
        found: dict[str, Any] = json.loads(self._ask(lambda: self._store.get(name)))
        return found

    def announce_wait(self, meeting: Meeting) -> None:
        """Lets the others say what this rank waits for."""
        self._ask(lambda: self._store.set(f"waits/{self.rank}", str(meeting)))

    def late(self, waits_for: str, missing: list[int]) -> DeadlockError:
        """The error of a wait that took too long."""
        return DeadlockError(
            f"rank {self.rank} has waited {self._timeout_seconds:g} s for {waits_for} "
            f"(Options.rank_timeout_seconds); {'; '.join(self._doing(rank) for rank in missing)}"
        )

    @property
    def deadline(self) -> float:
        """When a wait that starts now has taken too long."""
        return time.monotonic() + self._timeout_seconds

    def _doing(self, rank: int) -> str:
        name = f"waits/{rank}"
        waits_for = self._ask(lambda: self._store.get(name)).decode() if self._store.check([name]) else ""
        return f"rank {rank} " + (f"waits for {waits_for}" if waits_for else "has not arrived: it computes or is dead")

    def _await_ends(self) -> None:
        deadline = self.deadline
        while True:
            ends = {rank: self.ended(rank) for rank in range(self.size)}
            failed = next((rank for rank, end in ends.items() if end), None)
            if failed is not None:
                raise RankFailedError(f"rank {failed} failed after rank {self.rank} had finished: {ends[failed]}")
            missing = [rank for rank, end in ends.items() if end is None]
            if not missing:
                return
            if time.monotonic() > deadline:
                raise self.late(f"{name_ranks(missing)} to finish the kernel", missing)
            time.sleep(POLL_SECONDS)

    def _ask(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except RuntimeError as error:
            raise RankFailedError(
                f"rank {self.rank} has lost the store of the process group, so the rank that keeps it (rank 0 or "
                f"torchrun) has died: {_first_line(error)}"
            ) from None


class _Arrivals:
    """Looks for the other members of a meeting.

    Attributes:
        posts: tag and empty arrays of every member that has arrived.
        error: why the meeting cannot take place.
    """

    def __init__(self, world: ProcessWorld, meeting: Meeting, key: str) -> None:
        self.posts: dict[int, tuple[int, list[np.ndarray]]] = {}
        self.error: NkiValidationError | None = None
        self._world, self._meeting, self._key = world, meeting, key
        self._deadline = world.deadline
        self._announced = False

    def settled(self) -> bool:
        """Whether everybody is there, or nobody need wait any longer. Raises nothing: other cores ask, too."""
        if self.error is None and not self._meeting.complete:
            try:
                self._look()
            except NkiValidationError as error:
                self.error = error
        return self.error is not None or self._meeting.complete

    def _look(self) -> None:
        world, meeting = self._world, self._meeting
        ends = {rank: world.ended(rank) for rank in meeting.missing}
        for rank in meeting.missing:
            post = world.find_post(self._key, rank)
            if post is not None:
                arrays = [np.empty(shape, as_dtype(name).storage) for name, shape in post["layout"]]
                meeting.add(Offer(rank, post["terms"], arrays))
                self.posts[rank] = post["tag"], arrays
        for rank in meeting.missing:
            if ends[rank]:
                raise RankFailedError(f"rank {world.rank} waits for {meeting}; rank {rank} failed: {ends[rank]}")
            if ends[rank] is not None:
                raise DeadlockError(f"rank {world.rank} waits for {meeting}; rank {rank} finished without it")
        if meeting.missing and time.monotonic() > self._deadline:
            raise world.late(str(meeting), meeting.missing)
        if meeting.missing and not self._announced:
            world.announce_wait(meeting)
            self._announced = True


def _initialise(timeout_seconds: float) -> None:
    missing = [name for name in _ENVIRONMENT if name not in os.environ]
    if missing:
        raise LaunchError(f"no process group, and {', '.join(missing)} not set; accepted: a gloo group, or torchrun")
    try:
        dist.init_process_group("gloo", init_method="env://", timeout=timedelta(seconds=timeout_seconds))
    except (RuntimeError, ValueError) as error:
        raise DeadlockError(
            f"rank {os.environ['RANK']} waits for the other {int(os.environ['WORLD_SIZE']) - 1} of "
            f"{os.environ['WORLD_SIZE']} ranks to start (Options.rank_timeout_seconds {timeout_seconds:g}): "
            f"{_first_line(error)}"
        ) from None


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]

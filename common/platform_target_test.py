"""The variable is what each thread asked for while it asks, and as it was afterwards."""

import os
import threading
import time

import pytest

from common.platform_target import TARGET_VARIABLE, platform_target


@pytest.mark.parametrize("before", [None, "trn3"])
def test_threads_see_their_own_target_and_leave_none(monkeypatch, before):
    monkeypatch.delenv(TARGET_VARIABLE, raising=False)
    if before:
        monkeypatch.setenv(TARGET_VARIABLE, before)
    seen = []

    def launch(target):
        with platform_target(target):
            time.sleep(0.002)
            seen.append(os.environ[TARGET_VARIABLE] == target)

    threads = [threading.Thread(target=launch, args=(f"trn{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [True] * 8
    assert os.environ.get(TARGET_VARIABLE) == before


def test_a_failed_launch_leaves_the_variable_as_it_was(monkeypatch):
    monkeypatch.setenv(TARGET_VARIABLE, "trn3")
    with pytest.raises(KeyError), platform_target("trn2"):
        raise KeyError
    assert os.environ[TARGET_VARIABLE] == "trn3"

from __future__ import annotations

import errno
import math
import threading
import time

import pytest

from headrace.transport.watchdog import Watchdog
from tests.transport.echo_service import SWIFT


class Someone:
    def __init__(self, heard_at_s: float) -> None:
        self.heard_at_s = heard_at_s
        self.lost = threading.Event()

    def lose_silent(self) -> None:
        self.lost.set()


class Unyielding(Someone):
    """Can be cut off only at the third attempt."""

    tried = 0

    def lose_silent(self) -> None:
        self.tried += 1
        if self.tried < 3:
            raise OSError(errno.EMFILE, "too many open files")
        super().lose_silent()


@pytest.fixture
def watchdog() -> Watchdog:
    return Watchdog(SWIFT)


def test_only_the_silent_are_lost_and_not_early(watchdog: Watchdog) -> None:
    begun = time.monotonic()
    silent, speaking, unheard = Someone(begun), Someone(begun + 3600), Someone(math.inf)
    for each in (silent, speaking, unheard):
        watchdog.watch(each)
    assert silent.lost.wait(10)
    assert time.monotonic() - begun >= SWIFT.silence_s
    assert not speaking.lost.is_set()
    assert not unheard.lost.is_set()
    watchdog.close()


def test_the_forgotten_are_not_lost(watchdog: Watchdog) -> None:
    forgotten, silent = Someone(time.monotonic()), Someone(time.monotonic())
    watchdog.watch(forgotten)
    watchdog.watch(silent)
    watchdog.forget(forgotten)
    assert silent.lost.wait(10)
    assert not forgotten.lost.is_set()
    watchdog.close()


@pytest.mark.long
def test_one_that_cannot_be_cut_off_is_tried_again_and_the_others_are_watched(
    watchdog: Watchdog,
) -> None:
    begun = time.monotonic()
    unyielding, silent, later = Unyielding(begun), Someone(begun), Someone(begun)
    watchdog.watch(unyielding)
    watchdog.watch(silent)
    assert silent.lost.wait(10)
    assert unyielding.lost.wait(10)
    watchdog.watch(later)
    assert later.lost.wait(10)
    assert unyielding.tried == 3, "it is forgotten once it is cut off"
    watchdog.close()

"""A task's checkpoints for an engine that plans in steps: each is stored before anybody reads it.

The engine keeps a number: how far it has come. It asks for what follows it, hands the shares of
that to its workers, and may be killed at any point. The next life asks in any order: for the shares
of a checkpoint that was planned before, or for what follows one. Either opens a Session that
begins with exactly the checkpoint that is stored, if one is.

Another process may be doing the same for the same task. Whatever number is stored first is what
that number means to both.

Only checkpoints that show documents are stored, with few exceptions: where journals begin that
retention had cut before the task; progress through much that is rolled back, which Queues keep
until then; and progress that showed nothing for `empty_after_s`. Without the last one, a task whose
sources are rolled back again and again would stand still, and one day retention would remove what
it stands at.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headrace.errors import HeadraceError, NotFoundError, OutdatedError
from headrace.shuffle.checkpoint import Checkpoint, NextCheckpoint
from headrace.shuffle.checkpoints.checkpoint_history import History
from headrace.shuffle.queue.queue_client import Share
from headrace.shuffle.session_client import Shuffle

Opener = Callable[[Checkpoint, Checkpoint | None], Shuffle]
"""Opens a Session from the last commit, to begin with `read_through` if there is one."""


EMPTY_AFTER_S = 600.0


class Feed:
    """For one thread."""

    def __init__(
        self,
        history: History,
        open: Opener,
        *,
        names: bool = False,
        empty_after_s: float = EMPTY_AFTER_S,
    ) -> None:
        """`names`: shares have those of journals.

        When the newest checkpoint is `empty_after_s` old, the next may show nothing.
        """
        self.history = history
        self._names = names
        self._empty_after_s = empty_after_s
        self._empty_from_s = 0.0
        self._open = open
        self._shuffle: Shuffle | None = None
        self._number = 0
        self._found: NextCheckpoint | None = None
        """That one, if it was handed out."""
        self._shares: list[Share] = []
        self._is_next_stored = False
        self._released = -1

    def after(
        self, number: int, timeout_s: float | None = None, *, documents_max: int | None = None
    ) -> int:
        """The number of the checkpoint after this one, once it is stored; else the number itself.

        None up to it will be asked for again. After an error another Session is opened.
        """
        with self._closed_by_errors():
            self._release(number)
            while True:
                shuffle = self._at(number)
                found = shuffle.next_checkpoint(
                    timeout_s,
                    documents_max=documents_max,
                    may_be_empty=time.monotonic() >= self._empty_from_s,
                )
                if found is None:
                    return number
                if self._is_next_stored or self.history.append(number + 1, found.delta) is None:
                    self._hand_out(shuffle, found)
                    return number + 1
                # Another process was first, and its checkpoint is the one to be shown.
                self.close()

    @property
    def number(self) -> int:
        """Of the checkpoint that was handed out last, or that the Session began after."""
        return self._number

    def behind(self) -> int:
        """How many bytes journals have beyond the checkpoint that was handed out last."""
        return self._shuffle.status().behind_bytes if self._shuffle else 0

    def shares(self, number: int) -> list[Share]:
        """Of a checkpoint that is stored: one for each member."""
        with self._closed_by_errors():
            if not (self._shuffle and self._found and self._number == number):
                self.close()
                with _outdated(number - 1):
                    self.history.delta(number)
                shuffle = self._at(number - 1)
                found = shuffle.next_checkpoint()
                assert found, "a replay ends with its checkpoint"
                self._hand_out(shuffle, found)
            return self._shares

    def _at(self, number: int) -> Shuffle:
        """A Session whose next checkpoint is the one after this number."""
        if self._shuffle is None or self._number != number:
            self.close()
            self._is_next_stored = number < self.history.last()
            with _outdated(number):
                through = self.history.delta(number + 1) if self._is_next_stored else None
                last = self.history.load(number)
            self._shuffle = self._open(last, through)
            self._number, self._found = number, None
            self._stored(self.history.age_s())
        return self._shuffle

    def _hand_out(self, shuffle: Shuffle, found: NextCheckpoint) -> None:
        self._found, self._shares = found, shuffle.shares(found, names=self._names)
        self._number += 1
        self._is_next_stored = False
        self._stored(0.0)

    def _stored(self, ago_s: float) -> None:
        self._empty_from_s = time.monotonic() - ago_s + self._empty_after_s

    def _release(self, number: int) -> None:
        if number == self._released:
            return
        if self._shuffle and self._found and self._number == number:
            self._shuffle.release(self._found)
        self.history.release(number)
        self._released = number

    @contextmanager
    def _closed_by_errors(self) -> Iterator[None]:
        try:
            yield
        except HeadraceError:
            self.close()
            raise

    def close(self) -> None:
        shuffle, self._shuffle = self._shuffle, None
        if shuffle:
            shuffle.close()


@contextmanager
def _outdated(number: int) -> Iterator[None]:
    """Another process may be ahead, and have released what this one wants to go on from."""
    try:
        yield
    except NotFoundError as error:
        raise OutdatedError(
            f"what is to go on after checkpoint {number} cannot: {error.what}",
            do="go on from where it was last (its own checkpoint directory), or reset the task",
        ) from error

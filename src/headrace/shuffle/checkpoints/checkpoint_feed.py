"""A task's checkpoints for an engine that plans in steps: the feed stores each before it is read.

The engine keeps one number, that of the last checkpoint it planned. It asks the feed for the next
one and hands the shares of that to its workers. Somebody may kill it at any point. After a restart
it may ask for the shares of a checkpoint that it had planned, or for the checkpoint after one. In
either case the feed opens a Session. If the checkpoint is stored, the Session begins with exactly
that one.

Another process may do the same for the same task. For each number, both show the checkpoint that
was stored first.

The feed stores only checkpoints that show documents, with three exceptions: one that says where
journals begin, if retention cut them before the task; progress through much that was rolled back,
which Queues keep until then; and, when nothing was stored for `empty_after_s`, any progress.
Without the last exception, a task whose sources are always rolled back would stay where it is
until retention removes what it must read next.
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
"""Opens a Session from `last_commit`, which begins with `read_through` if that is not None."""

EMPTY_AFTER_S = 600.0


class Feed:
    """Hands out the checkpoints of one task, one after another. Only one thread may call it."""

    def __init__(
        self,
        history: History,
        open: Opener,
        *,
        names: bool = False,
        empty_after_s: float = EMPTY_AFTER_S,
    ) -> None:
        """If `names` is True, shares hold the names of the journals that they show.

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
        """Checkpoint `_number`, if the Session of `_shuffle` has shown it."""
        self._shares: list[Share] = []
        self._is_next_stored = False
        self._released = -1

    def after(
        self, number: int, timeout_s: float | None = None, *, documents_max: int | None = None
    ) -> int:
        """Store the checkpoint after `number` and return its number.

        Returns `number` if there is none within the timeout. The caller must not ask for the
        checkpoints up to `number` again. After an error the next call opens another Session.
        """
        with self._closed_by_errors():
            self._release(number)
            while True:
                shuffle = self._open_after(number)
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
                # Another process stored this number first, so its checkpoint must be shown.
                self.close()

    @property
    def number(self) -> int:
        """The last checkpoint that was handed out, or the one that the Session began after."""
        return self._number

    def behind(self) -> int:
        """Return how many bytes journals have beyond the last checkpoint that was handed out."""
        return self._shuffle.status().behind_bytes if self._shuffle else 0

    def shares(self, number: int) -> list[Share]:
        """Return the shares of a stored checkpoint, one for each member."""
        with self._closed_by_errors():
            if not (self._shuffle and self._found and self._number == number):
                self.close()
                with _outdated(number - 1):
                    self.history.delta(number)
                shuffle = self._open_after(number - 1)
                found = shuffle.next_checkpoint()
                assert found, "a replay ends with its checkpoint"
                self._hand_out(shuffle, found)
            return self._shares

    def _open_after(self, number: int) -> Shuffle:
        """Return a Session whose next checkpoint is the one after `number`."""
        if self._shuffle is None or self._number != number:
            self.close()
            self._is_next_stored = number < self.history.last()
            with _outdated(number):
                through = self.history.delta(number + 1) if self._is_next_stored else None
                last = self.history.load(number)
            self._shuffle = self._open(last, through)
            self._number, self._found = number, None
            self._set_empty_from(self.history.age_s())
        return self._shuffle

    def _hand_out(self, shuffle: Shuffle, found: NextCheckpoint) -> None:
        self._found, self._shares = found, shuffle.shares(found, names=self._names)
        self._number += 1
        self._is_next_stored = False
        self._set_empty_from(0.0)

    def _set_empty_from(self, age_s: float) -> None:
        """`age_s` is how long ago the newest checkpoint was stored."""
        self._empty_from_s = time.monotonic() - age_s + self._empty_after_s

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
    """Raise OutdatedError if another process is ahead and has released what this one needs."""
    try:
        yield
    except NotFoundError as error:
        raise OutdatedError(
            f"the task cannot go on after checkpoint {number}: {error.what}",
            do="start it from its newest progress (its own checkpoint directory), or reset it",
        ) from error

"""A first-in first-out queue between threads, bounded in bytes."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Holds up to about `bytes_max`. An empty mailbox takes an item of any size."""

    def __init__(self, bytes_max: float) -> None:
        self._bytes_max = bytes_max
        self._items: deque[tuple[T, int]] = deque()
        self._bytes = 0
        self._closed = False
        lock = threading.Lock()
        self._room = threading.Condition(lock)
        self._filled = threading.Condition(lock)

    def put(self, item: T, size: int) -> bool:
        """Wait for room and add an item. Returns False if the mailbox is closed."""
        with self._room:
            while self._items and self._bytes + size > self._bytes_max and not self._closed:
                self._room.wait()
            if self._closed:
                return False
            self._items.append((item, size))
            self._bytes += size
            self._filled.notify()
            return True

    def take(self, timeout_s: float | None = None, group_bytes: int = 0) -> list[T]:
        """Take the next item, and those behind it while all stay within `group_bytes`.

        Returns nothing if the mailbox is closed and empty. Raises TimeoutError if no item came in
        time.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._filled:
            while not self._items and not self._closed:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError(f"nothing arrived within {timeout_s} s")
                self._filled.wait(left)
            taken: list[T] = []
            taken_bytes = 0
            while self._items and (not taken or taken_bytes + self._items[0][1] <= group_bytes):
                item, size = self._items.popleft()
                taken.append(item)
                taken_bytes += size
            self._bytes -= taken_bytes
            self._room.notify_all()
            return taken

    def take_while(self, fits: Callable[[T], bool], bytes_max: int) -> list[T]:
        """Take the next items that are there now and fit, while they stay within `bytes_max`."""
        with self._room:
            taken: list[T] = []
            taken_bytes = 0
            while self._items:
                item, size = self._items[0]
                if not fits(item) or taken_bytes + size > bytes_max:
                    break
                self._items.popleft()
                taken.append(item)
                taken_bytes += size
            self._bytes -= taken_bytes
            if taken:
                self._room.notify_all()
            return taken

    def lift_limit(self) -> None:
        """Take every item from now on: its sender has little left to send."""
        with self._room:
            self._bytes_max = math.inf
            self._room.notify_all()

    def close(self, *, discard: bool = False) -> None:
        """Refuse further items. Those inside can still be taken, unless `discard` drops them."""
        with self._room:
            self._closed = True
            if discard:
                self._items.clear()
                self._bytes = 0
            self._room.notify_all()
            self._filled.notify_all()

"""Readers hold what they read: cleanup removes nothing of a stage that a reader has pinned.

A reader writes its pin, and then checks that what it reads is not marked as removed. Cleanup marks
what it will remove, and then looks for pins. So if both work at the same time, the reader sees the
mark, or cleanup sees the pin, or both: no reader that passed its check loses a file.

A pin is a lease, because a reader may die. The clocks of readers and of cleanup must agree to
within `SKEW_MS`.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Self

import msgspec

from headrace.errors import DamagedOutputError, NotFoundError, StorageError, UsageError
from headrace.exchange.cleanup.removal_marks import is_marked, is_query_marked
from headrace.exchange.format.layout import LATEST, PINS, MapTask, query_directory
from headrace.exchange.format.publication import (
    RECORD_VERSION,
    PublishedOutput,
    decode_record,
    encode_record,
)
from headrace.exchange.output_registry import OutputRegistry
from headrace.storage import Objects

LEASE_S = 600.0
SKEW_MS = 60_000
"""Cleanup keeps a pin for this much longer than its lease says."""


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored: who holds which stage, and until when."""

    version: int = RECORD_VERSION
    stage_id: int | None
    """None, which is never stored, stands for all stages."""
    held_until_ms: int
    holder: str

    @property
    def kept_until_ms(self) -> int:
        """Until when cleanup respects it, if nobody renews it."""
        return self.held_until_ms + SKEW_MS

    def holds_at(self, at_ms: int) -> bool:
        return at_ms <= self.kept_until_ms

    def __str__(self) -> str:
        until = datetime.fromtimestamp(self.kept_until_ms // 1_000, UTC)
        return f"{self.holder or 'a reader'} until {until:%Y-%m-%dT%H:%M:%SZ}"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class PinnedStage:
    """Holds every attempt of a stage that is published, until it is released.

    A thread of its own renews the lease. Use it in a `with` statement, and look outputs up through
    it: the attempts that it returns stay until the statement ends.
    """

    def __init__(
        self,
        objects: Objects,
        query_id: int,
        stage_id: int,
        *,
        holder: str = "",
        lease_s: float = LEASE_S,
        now_ms: Callable[[], int] = now_ms,
    ) -> None:
        self.query_id = query_id
        self.stage_id = stage_id
        self._objects = objects
        self._registry = OutputRegistry(objects)
        self._holder = holder
        self._lease_ms = int(lease_s * 1_000)
        self._now_ms = now_ms
        self._key = f"{query_directory(query_id)}/{PINS}/{secrets.token_hex(8)}"
        self._held_until_ms = 0
        self._released = threading.Event()
        self.renew()
        if is_query_marked(objects, query_id):
            self.release()
            raise NotFoundError(
                f"query {query_id} is being removed", do="finish removing it, then compute it again"
            )
        self._renewing = threading.Thread(
            target=self._renew_in_time, name=f"pin {self._key}", daemon=True
        )
        self._renewing.start()

    def published(self) -> dict[int, PublishedOutput]:
        """Return the latest output of every map task that has one, as the registry does."""
        self._check_held()
        return self._registry.published(self.query_id, self.stage_id)

    def lookup(self, map_task: int, attempt: int = LATEST) -> PublishedOutput:
        """Return a published output, by default the latest. Raises NotFoundError."""
        self._check_held()
        task = MapTask(self.query_id, self.stage_id, map_task)
        found = self._registry.lookup(task, attempt)
        if is_marked(self._objects, task, found.attempt):
            raise self._removed(found)
        # Cleanup may have removed the attempt, and its mark, before this pin was there.
        return self._registry.lookup(task, found.attempt)

    def renew(self) -> None:
        """Extend the lease from now on."""
        held_until_ms = self._now_ms() + self._lease_ms
        pin = Pin(stage_id=self.stage_id, held_until_ms=held_until_ms, holder=self._holder)
        self._objects.put(self._key, encode_record(pin))
        self._held_until_ms = held_until_ms

    def release(self) -> None:
        """Let cleanup have the stage. It is no error to release it twice."""
        self._released.set()
        self._objects.delete(self._key)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()
        self._renewing.join()

    def _renew_in_time(self) -> None:
        while not self._released.wait(self._lease_ms / 3_000):
            # Two more attempts fit into the lease; `_check_held` notices if none succeeds.
            with suppress(StorageError):
                self.renew()
            if self._released.is_set():
                # The renewal may have overtaken the deletion. If this fails, the lease ends the
                # pin.
                with suppress(StorageError):
                    self._objects.delete(self._key)

    def _check_held(self) -> None:
        if self._released.is_set():
            raise UsageError(
                f"stage {self.stage_id} of query {self.query_id} is released", do="pin it again"
            )
        if self._now_ms() > self._held_until_ms:
            raise StorageError(
                f"the pin of stage {self.stage_id} of query {self.query_id} has expired",
                do="pin it again, and look its outputs up again",
            )

    def _removed(self, output: PublishedOutput) -> NotFoundError:
        return NotFoundError(f"cleanup is removing {output}", do="read the latest attempt")


def is_pinned(objects: Objects, query_id: int, stage_id: int | None, at_ms: int) -> bool:
    """Return True if a reader holds the stage, or any stage of the query if it is None.

    Deletes pins that have expired.
    """
    for key, pin in _stored_pins(objects, query_id):
        if not pin.holds_at(at_ms):
            objects.delete(key)
        elif stage_id is None or pin.stage_id in (stage_id, None):
            return True
    return False


def list_pins(objects: Objects, query_id: int, at_ms: int) -> list[Pin]:
    """Return the pins that hold stages of a query, those of one stage together."""
    held = [pin for _, pin in _stored_pins(objects, query_id) if pin.holds_at(at_ms)]
    return sorted(held, key=lambda pin: (pin.stage_id or 0, pin.holder, pin.held_until_ms))


def release_pins(objects: Objects, query_id: int) -> None:
    """Release everything of a query whose readers are dead for certain, before its leases end."""
    for info in objects.list(f"{query_directory(query_id)}/{PINS}"):
        objects.delete(info.key)


def _stored_pins(objects: Objects, query_id: int) -> Iterator[tuple[str, Pin]]:
    """Yield the key of each pin, and the pin. One that is damaged holds everything for a lease."""
    for info in objects.list(f"{query_directory(query_id)}/{PINS}"):
        try:
            yield info.key, decode_record(objects.get(info.key), Pin, info.key)
        except NotFoundError:
            continue  # released since it was listed
        except DamagedOutputError:
            until_ms = int(info.modified.timestamp() * 1_000 + LEASE_S * 1_000)
            yield info.key, Pin(stage_id=None, held_until_ms=until_ms, holder="unknown")

"""The processes that tests kill: writers that report what became of each transaction.

A verdict is a line in the process's own file: `yes LABEL N` once a commit returned, `no LABEL N`
once it was refused. A transaction without a line was in flight when its process died.
"""

from __future__ import annotations

import os
import random
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import headrace as hr
from headrace.errors import (
    PublishError,
    TransportError,
    WorkspaceError,
)
from headrace.journal.local import owner
from headrace.log import Directory
from headrace.testing.crash import DeadlyDisk, KillPoint

COLLECTIONS = ("crash/a", "crash/b", "crash/c")
SCHEMA = "label string, tx long, part int, parts int"
JOURNALS = 3
IN_FLIGHT = 3
PAUSE_S = 0.005

SETTINGS = hr.Settings(
    log=hr.LogSettings(segment_bytes=256 * 1024),
    journal=hr.JournalSettings(
        transaction_buffer_bytes=2048, frame_bytes_target=1024, keeper_interval_s=0.2
    ),
    service=hr.ServiceSettings(heartbeat_s=0.2, silence_s=5.0),
)


def open_workspace(root: Path | str, settings: hr.Settings = SETTINGS) -> hr.Workspace:
    workspace = hr.open(root, settings=settings)
    for name in COLLECTIONS:
        workspace.collection(name, SCHEMA, key="part", journals=JOURNALS)
    return workspace


def documents(label: str, tx: int, parts: int) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield the parts of a transaction, spread over the collections."""
    whole = [{"label": label, "tx": tx, "part": n, "parts": parts} for n in range(parts)]
    for index, name in enumerate(COLLECTIONS):
        if whole[index :: len(COLLECTIONS)]:
            yield name, whole[index :: len(COLLECTIONS)]


class PublisherProcess:
    """Runs two writers and one transaction that never ends, until stopped or killed."""

    def __init__(
        self, root: Path, verdicts: Path, slot: int, life: int, seed: str, death: KillPoint | None
    ) -> None:
        if death:
            mock.patch.object(
                owner, "Directory", lambda path: DeadlyDisk(Directory(path), death)
            ).start()
        self._verdicts = os.open(verdicts, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._workspace = open_workspace(root)
        self._stopped = threading.Event()
        self._failure: BaseException | None = None
        self._writers = [
            threading.Thread(
                target=self._run, args=(label, name, life, random.Random(label + seed))
            )
            for label, name in ((f"named{slot}", f"named{slot}"), (f"pooled{slot}.{life}", ""))
        ]
        self._leave_open(f"open{slot}.{life}")
        for writer in self._writers:
            writer.start()

    def stop(self) -> None:
        """End in good order. Raises the error of a writer."""
        self._stopped.set()
        for writer in self._writers:
            writer.join()
        self._workspace.close()
        if self._failure:
            raise self._failure

    def _leave_open(self, label: str) -> None:
        self._tell("no", label, 0)
        # The owner may die meanwhile, which does not matter.
        with suppress(PublishError, TransportError):
            self._open = self._workspace.publisher().begin()
            for collection, rows in documents(label, 0, 600):
                self._open.append(collection, rows)

    def _run(self, label: str, name: str, life: int, chance: random.Random) -> None:
        try:
            self._write(label, name, life, chance)
        except BaseException as error:
            self._failure = error
            self._tell("failed", label, repr(error))
            raise

    def _write(self, label: str, name: str, life: int, chance: random.Random) -> None:
        tx = life * 1_000_000
        in_flight: deque[tuple[int, hr.PendingCommit]] = deque()
        publisher: hr.Publisher | None = None
        while not self._stopped.wait(PAUSE_S):
            tx += 1
            try:
                if publisher is None:
                    self._settle(label, in_flight, 0)
                    publisher = self._workspace.publisher(name)
                    if name:
                        self._tell("opened", label, f"{publisher.payload.decode() or -1} {tx}")
                transaction = publisher.begin()
                for collection, rows in documents(label, tx, chance.choice((1, 4, 9, 200))):
                    transaction.append(collection, rows)
                if chance.random() < 0.1:
                    transaction.rollback()
                    self._tell("no", label, tx)
                else:
                    payload = str(tx).encode() if name else b""
                    in_flight.append((tx, transaction.commit_nowait(payload)))
            except (PublishError, TransportError, WorkspaceError):
                # The commit was not sent, so it never takes effect.
                self._tell("no", label, tx)
                publisher = None
            if not self._settle(label, in_flight, IN_FLIGHT):
                publisher = None
        self._settle(label, in_flight, 0)

    def _settle(
        self, label: str, in_flight: deque[tuple[int, hr.PendingCommit]], most: int
    ) -> bool:
        """Wait for verdicts until `most` are left. Returns True if all were good."""
        good = True
        while len(in_flight) > most or (not good and in_flight):
            tx, pending = in_flight.popleft()
            verdict = self._verdict(pending)
            self._tell(verdict, label, tx)
            good = good and verdict == "yes"
        return good

    def _verdict(self, pending: hr.PendingCommit) -> str:
        while True:
            try:
                pending.result()
            except PublishError:
                return "no"
            except hr.InDoubtError:
                # Nobody knows yet: ask again.
                continue
            return "yes"

    def _tell(self, verdict: str, label: str, what: object) -> None:
        os.write(self._verdicts, f"{verdict} {label} {what}\n".encode())

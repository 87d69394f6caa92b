"""A transaction that four processes write, step by step, while one of them or the owner is killed.

The owner of the workspace is a fifth. Whoever runs a step is waited for, so the same steps change
the owner's disk in the same way.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self
from unittest import mock

import headrace as hr
from headrace.errors import HeadraceError, PublishError
from headrace.journal.local import owner
from headrace.log import Directory
from headrace.testing.crash import Child, DeadlyDisk, KillPoint
from tests.journal.crash.publisher_process import documents, open_workspace
from tests.journal.crash.scripted_work import NEVER_S, CountedDisk

WAIT_S = 60.0
PARTS = 60
SETTINGS = hr.Settings(
    log=hr.LogSettings(idle_seal_s=NEVER_S),
    journal=hr.JournalSettings(keeper_interval_s=NEVER_S),
    service=hr.ServiceSettings(heartbeat_s=0.2, silence_s=10.0),
)

COORDINATOR = "coordinator"
PARTICIPANTS = ("first", "second", "third")
EVERYBODY = (COORDINATOR, *PARTICIPANTS)

Outcome = Literal["committed", "vanished", "unknown"]


class Step(NamedTuple):
    who: str
    does: str


STEPS = (
    Step(COORDINATOR, "begin"),
    Step(COORDINATOR, "write"),
    *(Step(who, does) for who in PARTICIPANTS for does in ("join", "write", "prepare")),
    Step(COORDINATOR, "commit"),
)
COMMIT = len(STEPS) - 1


DOING = {
    "begin": "part.begin()",
    "join": "part.join(invitation)",
    "write": "part.write(tx)",
    "prepare": "part.prepare()",
    "commit": "part.commit(prepared)",
}


class Kill(NamedTuple):
    """Kills one of the four before a step; the number of steps means after the last."""

    who: str
    step: int
    during_s: float | None = None
    """Kill it not before the step but this long after the step began, or once it is done."""


class Part:
    """The part of the transaction that one of the four processes holds."""

    def __init__(self, root: Path, label: str) -> None:
        self._workspace = open_workspace(root, SETTINGS)
        self._label = label
        self._part: Any = None

    def begin(self) -> str:
        self._part = self._workspace.publisher().begin()
        return str(self._part.invite())

    def join(self, invitation: str) -> None:
        self._part = self._workspace.join(invitation)

    def write(self, tx: int) -> None:
        for collection, rows in documents(self._label, tx, PARTS):
            self._part.append(collection, rows)
        self._part._buffer.send(self._part._buffer.seal()).result()

    def prepare(self) -> str:
        return str(self._part.prepare())

    def commit(self, prepared: list[str]) -> bool:
        """Commit, and ask until the outcome is known. Returns True if it committed."""
        try:
            for each in prepared:
                self._part.include(each)
            pending = self._part.commit_nowait()
        except PublishError:
            return False
        while True:
            try:
                pending.result()
            except PublishError:
                return False
            except hr.InDoubtError:
                continue
            return True

    def give_up(self) -> None:
        if self._part:
            self._part.rollback()

    def close(self) -> None:
        self._workspace.close()


def die_at(point: KillPoint) -> None:
    """Let this process, the owner, die at a point. Call before it opens the workspace."""
    mock.patch.object(owner, "Directory", lambda path: DeadlyDisk(Directory(path), point)).start()


def count_in(writes: list[bool]) -> None:
    mock.patch.object(owner, "Directory", lambda path: CountedDisk(Directory(path), writes)).start()


class JointTransaction:
    """The four processes; a killed one is replaced before the next run."""

    def __init__(self) -> None:
        self._cleanup = ExitStack()
        self._living: dict[str, Child] = {}
        self._root: Path | None = None

    def open(self, root: Path) -> None:
        """Let all four open this workspace, which another process owns."""
        self._root = root
        for who in EVERYBODY:
            self._enter(who)

    def leave(self) -> None:
        for child in self._living.values():
            if child.is_alive:
                child.run("part.close()", WAIT_S)

    def run(self, tx: int, kill: Kill | None = None) -> Outcome:
        """Run one transaction with `kill` in it, after replacing dead processes."""
        for who, child in self._living.items():
            if not child.is_alive:
                self._enter(who)
        outcome = self._run(tx, kill)
        if kill and kill.step == len(STEPS):
            self._living[kill.who].kill()
        return outcome

    def _run(self, tx: int, kill: Kill | None) -> Outcome:
        """Give the transaction up if one of the four did not prepare."""
        given: dict[str, Any] = {"tx": tx, "invitation": "", "prepared": []}
        failed: set[str] = set()
        for number, (who, does) in enumerate(STEPS):
            child = self._living[who]
            if kill and kill.step == number:
                answered = False
                if kill.during_s is not None:
                    child.start(DOING[does], **given)
                    with suppress(TimeoutError):
                        child.answer(kill.during_s)
                        answered = True
                self._living[kill.who].kill()
                if kill.during_s is not None and does == "commit":
                    return "committed" if answered else "unknown"
            if does == "commit" and len(given["prepared"]) < len(PARTICIPANTS):
                failed.add(who)
            if not child.is_alive or who in failed:
                continue
            try:
                answer = child.run(DOING[does], WAIT_S, **given)
            except HeadraceError:
                failed.add(who)
                continue
            match does:
                case "begin":
                    given["invitation"] = answer
                case "prepare":
                    given["prepared"].append(answer)
                case "commit":
                    return "committed" if answer else "vanished"
        if self._living[COORDINATOR].is_alive:
            self._living[COORDINATOR].run("part.give_up()", WAIT_S)
        return "vanished"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._cleanup.close()

    def _enter(self, who: str) -> None:
        child = self._living.get(who)
        if child is None or not child.is_alive:
            child = self._cleanup.enter_context(
                Child("from tests.journal.crash.joint_transaction import Part", label=who)
            )
            self._living[who] = child
        child.run("part = Part(root, label)", WAIT_S, root=self._root)

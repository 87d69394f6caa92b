"""A process that publishes, some that are members, and one that consumes; the latter are killed."""

from __future__ import annotations

import random
from contextlib import ExitStack
from pathlib import Path
from typing import Literal, Self, get_args

from headrace.errors import HeadraceError, TransportError
from headrace.testing.crash import Child, KillPoint, eventually
from tests.shuffle.crash import oracle
from tests.shuffle.crash.coordinator import Death, Step, committed
from tests.shuffle.crash.writers import SETTINGS, open_workspace

MEMBERS = 3
WAIT_S = 90.0
POINTS = 60
CHECKPOINTS = 12

Victim = Literal["member", "coordinator", "both"]

MEMBER = """
from unittest import mock
import headrace as hr
from headrace.log import Directory
from headrace.shuffle.queue import store
from headrace.testing.crash import DeadlyDisk
if death:
    mock.patch.object(store, "Directory", lambda path: DeadlyDisk(Directory(path), death)).start()
member = hr.Member(folder, service=service)
"""
COORDINATOR = """
from tests.shuffle.crash.coordinator import Coordinator
coordinator = Coordinator(root, folder, death)
"""
PUBLISHING = """
from tests.shuffle.crash.writers import Publishing
publishing = Publishing(root, seed)
"""


class ProcessGroup:
    def __init__(self, folder: Path, seed: str) -> None:
        self._folder = folder
        self._root = folder / "workspace"
        self._task = folder / "task"
        self._task.mkdir(parents=True)
        self._chance = random.Random(seed)
        self._cleanup = ExitStack()
        self.deaths = 0
        self.replays = 0
        self._publishing = self._child(PUBLISHING, root=self._root, seed=seed)
        self._publishing.run("None")
        self._members: list[Child] = []
        self._folders: dict[Child, Path] = {}
        self._deadly: Child | None = None

    def round(self, victim: Victim) -> None:
        """Consume until somebody dies, which ends the Session; then replace whoever is gone."""
        self._consume(
            self._hire(deadly=victim != "coordinator"),
            self._coordinator(None if victim == "member" else self._random_death()),
        )

    def leave_a_replay(self) -> None:
        """A coordinator dies while it reads its first checkpoint: the next one has to replay."""
        self._consume(self._hire(deadly=False), self._coordinator(Death("reading", 1)))

    def _consume(self, members: list[Child], coordinator: Child) -> None:
        coordinator.start(
            "coordinator.consume(members, checkpoints)",
            members=_addresses(members),
            checkpoints=CHECKPOINTS,
        )
        cause: HeadraceError | None = None
        try:
            coordinator.answer(WAIT_S)
        except (EOFError, ConnectionError):
            coordinator.wait(WAIT_S)
            self.deaths += 1
        except HeadraceError as error:
            cause = error
        if cause:
            assert isinstance(cause, TransportError), f"not the loss of a member: {cause!r}"
            died = f"the death behind {cause}"
            eventually(lambda: not all(member.is_alive for member in members), WAIT_S, died)
        coordinator.kill()
        self._release_members()

    def finish(self) -> None:
        """Consume the rest with nobody dying, and compare everything with the oracle."""
        self._publishing.run("publishing.stop()")
        with open_workspace(self._root) as workspace:
            expected = oracle.committed_documents(workspace)
        coordinator = self._coordinator(None)
        coordinator.start(
            "coordinator.consume(members, 0, documents)",
            members=_addresses(self._hire(deadly=False)),
            documents=len(expected),
        )
        late: TimeoutError | None = None
        try:
            coordinator.answer(WAIT_S)
        except TimeoutError as error:
            late = error
        oracle.check(committed(self._task), expected)
        if late:
            raise late
        self.replays = coordinator.run("coordinator.replays")
        eventually(lambda: not self._left(), WAIT_S, "the end of every Queue's files")

    def _left(self) -> list[Path]:
        """Files of Sessions that have ended, with members that live."""
        folders = [self._folders[member] for member in self._members]
        return [file for folder in folders for file in folder.glob("*/*")]

    def _hire(self, *, deadly: bool) -> list[Child]:
        """Some members, new and old; with `deadly`, one will die while it writes its Queue."""
        count = self._chance.randrange(1, MEMBERS + 1)
        while len(self._members) < count:
            self._members.append(self._member(None))
        chosen = self._chance.sample(self._members, count)
        if deadly:
            death = KillPoint.random(self._chance, POINTS)
            self._deadly = chosen[self._chance.randrange(count)] = self._member(death)
        return chosen

    def _release_members(self) -> None:
        """The others are used again; the one that is to die may do so late, and is let go."""
        assert all(member.is_alive for member in self._members), "a member died by itself"
        if self._deadly:
            self.deaths += not self._deadly.is_alive
            self._deadly.kill()
            self._deadly = None

    def _member(self, death: KillPoint | None) -> Child:
        folder = self._folder / "members" / f"{len(self._folders)}"
        member = self._child(MEMBER, folder=folder, death=death, service=SETTINGS.service)
        self._folders[member] = folder
        return member

    def _random_death(self) -> Death:
        step: Step = self._chance.choice(get_args(Step))
        return Death(step, self._chance.randrange(1, CHECKPOINTS))

    def _coordinator(self, death: Death | None) -> Child:
        return self._child(COORDINATOR, root=self._root, folder=self._task, death=death)

    def _child(self, setup: str, **names: object) -> Child:
        return self._cleanup.enter_context(Child(setup, **names))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._cleanup.close()


def _addresses(members: list[Child]) -> list[str]:
    return [member.run("member.address") for member in members]

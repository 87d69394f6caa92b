"""Three processes that share a workspace; the group replaces those that die."""

from __future__ import annotations

import random
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Literal, Self

import headrace as hr
from headrace.errors import PeerLostError
from headrace.journal.location.workspace_directory import WorkspaceDirectory
from headrace.testing.crash import Child, KillPoint, eventually
from headrace.transport.owned_directory import OwnerAddress
from tests.journal.crash import oracle
from tests.journal.crash.publisher_process import SETTINGS

SLOTS = 3
WAIT_S = 60.0
POINTS = 120
DEADLY_SHARE = 0.6

Victims = Literal["point", "owner", "other", "all"]


class ProcessGroup:
    def __init__(self, root: Path, seed: str) -> None:
        self._directory = WorkspaceDirectory(root / "workspace")
        self._root = root
        self._chance = random.Random(seed)
        self._lives = 0
        self._children: list[Child] = []
        self._deadly: set[Child] = set()
        self._files: dict[Child, Path] = {}
        self._cleanup = ExitStack()
        self.deaths = 0
        for slot in range(SLOTS):
            self._children.append(self._start(slot))

    def round(self, victims: Victims) -> None:
        """Kill processes; check that the others continue and that all verdicts hold."""
        self._wait_for_verdicts(self._living(), self._chance.randrange(1, 40))
        match victims:
            case "point":
                self._await_point()
            case "owner":
                self._owner().kill()
            case "other":
                owner = self._owner()
                self._chance.choice([c for c in self._living() if c is not owner]).kill()
            case "all":
                for child in self._living():
                    child.kill()
        survivors = self._living()
        self._wait_for_verdicts(survivors, 10)
        if not survivors:
            self.reopen()
        self._replace()
        self._audit()

    def reopen(self) -> int:
        """Open the workspace alone; check that nothing is open and all verdicts hold."""
        reported = oracle.verdicts(self._files.values())
        with hr.open(self._directory.root, settings=SETTINGS) as workspace:
            oracle.check_all_ended(workspace)
            return oracle.check(workspace, reported)

    def stop(self) -> None:
        """End all processes in good order, at the same time."""
        self._replace()
        living = self._living()
        for child in living:
            with suppress(ConnectionError):  # Its disk killed it meanwhile.
                child.start("publishing.stop()")
        for child in living:
            try:
                child.answer(WAIT_S)
            except (EOFError, ConnectionError):
                child.wait(WAIT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._cleanup.close()

    def _start(self, slot: int) -> Child:
        self._lives += 1
        file = self._root / f"verdicts-{slot}-{self._lives}"
        file.touch()
        deadly = self._chance.random() < DEADLY_SHARE
        child = self._cleanup.enter_context(
            Child(
                "from tests.journal.crash.publisher_process import PublisherProcess\n"
                "publishing = PublisherProcess(root, verdicts, slot, life, seed, death)",
                root=self._directory.root,
                verdicts=file,
                slot=slot,
                life=self._lives,
                seed=str(self._chance.random()),
                death=KillPoint.random(self._chance, POINTS) if deadly else None,
            )
        )
        self._files[child] = file
        if deadly:
            self._deadly.add(child)
        return child

    def _replace(self) -> None:
        for slot, child in enumerate(self._children):
            if not child.is_alive:
                self.deaths += 1
                self._children[slot] = self._start(slot)

    def _living(self) -> list[Child]:
        return [child for child in self._children if child.is_alive]

    def _owner(self) -> Child:
        """Replace processes that died, and return the one that owns the workspace."""

        def find() -> Child | None:
            self._replace()
            named = self._directory.owner()
            by_pid = {child.pid: child for child in self._living()}
            return by_pid.get(named.process) if named else None

        return eventually(find, WAIT_S, "an owner")

    def _await_point(self) -> None:
        """Wait until its own disk kills an owner; first kill an owner that will not be."""
        while (owner := self._owner()) not in self._deadly:
            owner.kill()
        eventually(lambda: not owner.is_alive, WAIT_S, "an owner's death at its point")

    def _wait_for_verdicts(self, children: list[Child], more: int) -> None:
        """Wait until each living process has reported `more` verdicts."""
        goal = {child: _lines(self._files[child]) + more for child in children}
        eventually(
            lambda: all(
                _lines(self._files[child]) >= goal[child] or not child.is_alive
                for child in children
            ),
            WAIT_S,
            "more verdicts",
        )

    def _audit(self) -> None:
        """Check through the present owner, and through the next if that dies meanwhile."""
        while True:
            owner = self._address()
            try:
                with hr.open(owner.address, token=owner.token, settings=SETTINGS) as workspace:
                    oracle.check(workspace, oracle.verdicts(self._files.values()))
                    return
            except PeerLostError:
                self._replace()

    def _address(self) -> OwnerAddress:
        self._owner()
        return eventually(self._directory.owner, WAIT_S, "an owner's address")


def _lines(file: Path) -> int:
    return file.read_bytes().count(b"\n")

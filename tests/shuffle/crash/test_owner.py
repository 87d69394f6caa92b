"""`kill -9` and `SIGSTOP` of the owner of the journals, under a Session that goes on."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from unittest import mock

import pytest

import headrace as hr
from headrace.errors import HeadraceError
from headrace.journal.location.workspace_directory import WorkspaceDirectory
from headrace.journal.wire.remote_journals import RemoteJournals
from headrace.testing.crash import Child, chosen_seed, eventually

SERVICE = hr.ServiceSettings(heartbeat_s=0.2, silence_s=20.0)
"""They wait so long for an owner that is being started, and notice one that is killed at once."""
SWIFT = hr.ServiceSettings(heartbeat_s=0.1, silence_s=1.5)
WAIT_S = 90.0
MEMBERS = 2
OWN = "import headrace as hr; workspace = hr.open(root, settings=hr.Settings(service=service))"
NEVER_OWN = """
from unittest import mock
from headrace.journal.wire.remote_journals import RemoteJournals
from headrace.journal.location.workspace_directory import WorkspaceDirectory
mock.patch.object(WorkspaceDirectory, "try_lock", lambda directory: False).start()
"""
START = "import headrace as hr; member = hr.Member(folder, service=service)"


class OwnerGroup:
    """Members, an owner of the journals that is replaced, and one Session for all the time."""

    def __init__(self, folder: Path, service: hr.ServiceSettings, *, heirs: str) -> None:
        self._root = folder / "workspace"
        self._service = service
        self._stack = ExitStack()
        self.owner = self._owner()
        self.workspace = self._stack.enter_context(
            hr.open(self._root, settings=hr.Settings(service=service))
        )
        assert self.workspace.address is None
        self.workspace.collection("c", "number long", key="number", journals=4)
        self.members = [self._child(heirs + START, folder=folder / f"{n}") for n in range(MEMBERS)]
        self.shuffle = self._stack.enter_context(
            hr.Shuffle(
                self.workspace,
                [hr.Binding(collection="c")],
                [member.run("member.address") for member in self.members],
                service=service,
            )
        )
        self.seen: Counter[int] = Counter()
        self._published = 0

    def replace_owner(self) -> None:
        self.owner.kill()
        self.owner = self._owner()

    def _owner(self) -> Child:
        owner = self._child(OWN, root=self._root)
        owner.run("None")
        return owner

    def _child(self, setup: str, **names: object) -> Child:
        return self._stack.enter_context(Child(setup, service=self._service, **names))

    @contextmanager
    def publishing(self) -> Iterator[None]:
        """Transactions of several journals; without an owner they are rolled back or in doubt."""
        stopping = threading.Event()

        def publish() -> None:
            while not stopping.wait(0.01):
                with suppress(HeadraceError):
                    self.publish()

        thread = threading.Thread(target=publish)
        thread.start()
        try:
            yield
        finally:
            stopping.set()
            thread.join()

    def publish(self) -> None:
        first, self._published = self._published, self._published + 10
        with self.workspace.publisher() as tx:
            tx.append("c", [{"number": n} for n in range(first, self._published)])

    def consume(self, checkpoints: int) -> None:
        """So many; each has documents, because nothing else makes one."""
        for _ in range(checkpoints):
            found = self.shuffle.next_checkpoint(WAIT_S)
            assert found, "nothing came"
            for member in range(MEMBERS):
                for _, batch in self.shuffle.read(member, found):
                    self.seen.update(batch["number"].to_pylist())
            self.shuffle.release(found)

    def check(self) -> None:
        """The Session has shown what is committed, each document once."""
        committed = Counter(self.workspace.table("c")["number"].to_pylist())
        deadline = time.monotonic() + WAIT_S
        while self.seen.total() < committed.total() and time.monotonic() < deadline:
            self.consume(1)
        assert self.seen == committed
        assert set(committed.values()) == {1}

    def __enter__(self) -> OwnerGroup:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()


# proves G5, G7, G13
@pytest.mark.parametrize("owners", [3, pytest.param(30, marks=pytest.mark.deep)])
def test_a_session_goes_on_with_one_owner_of_the_journals_after_the_other(
    tmp_path: Path, owners: int
) -> None:
    chance = random.Random(chosen_seed(default=1))
    with (
        mock.patch.object(WorkspaceDirectory, "try_lock", return_value=False),
        OwnerGroup(tmp_path, SERVICE, heirs=NEVER_OWN) as group,
    ):
        with group.publishing():
            for _ in range(owners):
                group.consume(chance.randrange(1, 5))
                group.replace_owner()
                group.consume(2)
        group.check()


# proves G5, G7, G13
def test_a_session_goes_on_when_one_of_its_own_processes_becomes_the_owner(tmp_path: Path) -> None:
    with OwnerGroup(tmp_path, SERVICE, heirs="") as group:
        with group.publishing():
            group.consume(2)
            group.owner.kill()
            group.consume(4)
        group.check()


# proves G5, G7, G13
def test_a_session_goes_on_when_an_owner_that_stood_still_does(tmp_path: Path) -> None:
    with OwnerGroup(tmp_path, SWIFT, heirs="") as group:
        for _ in range(2):
            group.publish()
            group.consume(1)
            group.owner.stop()
            lost = group.workspace._connection.attached
            assert isinstance(lost, RemoteJournals)
            eventually(lambda lost=lost: lost.is_lost, WAIT_S, "the silence")  # type: ignore[misc]
            group.owner.resume()
            group.publish()
            group.consume(1)
        group.check()

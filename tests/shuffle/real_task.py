"""A task over a real workspace and real members; a test can reopen it any number of times."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec
import pyarrow as pa

import headrace as hr
from headrace.clock import Clock
from headrace.ids import JournalId
from headrace.journal.contract import CommitRequest, DocsHead, Lease, Write
from headrace.journal.local.records import Docs
from headrace.journal.sequencer import Flags
from headrace.settings import LogSettings, ServiceSettings, ShuffleSettings
from headrace.shuffle import Binding, Checkpoint, Member, NextCheckpoint, Shuffle

POLL_S = 20.0
SOON_S = 15.0
"""Long enough for a busy machine, and shorter than any hang."""
SETTINGS = ShuffleSettings(patience_s=30.0)
"""A busy machine may not answer within the default second, and the tests check the order."""


class Document(NamedTuple):
    binding: str
    member: int
    clock: int
    fields: dict[str, Any]


class Shown(NamedTuple):
    """A checkpoint and its documents."""

    checkpoint: NextCheckpoint
    documents: list[Document]

    def column(self, field: str) -> list[Any]:
        return sorted(document.fields[field] for document in self.documents)


class Task:
    def __init__(self, root: Path, members: int = 2) -> None:
        self._stack = ExitStack()
        self.root = root
        settings = hr.Settings(
            log=LogSettings(sync=False), journal=hr.JournalSettings(keeper_interval_s=3600)
        )
        self.workspace = self._stack.enter_context(hr.open(root / "data", settings=settings))
        self.members = [
            self._stack.enter_context(Member(root / "queues", log=LogSettings(sync=False)))
            for _ in range(members)
        ]
        self.checkpoint = Checkpoint()
        """The last one that was committed."""
        self._shuffle: Shuffle | None = None

    @property
    def addresses(self) -> list[str]:
        return [member.address for member in self.members]

    @property
    def shuffle(self) -> Shuffle:
        assert self._shuffle
        return self._shuffle

    def open(
        self,
        *bindings: Binding | str,
        read_through: Checkpoint | None = None,
        settings: ShuffleSettings = SETTINGS,
        service: ServiceSettings | None = None,
        members: Sequence[str] | None = None,
    ) -> Shuffle:
        """End the Session that runs, and open another from the last committed checkpoint."""
        self.leave()
        self._shuffle = Shuffle(
            self.workspace,
            [Binding(collection=b) if isinstance(b, str) else b for b in bindings],
            members or self.addresses,
            last_commit=self.checkpoint,
            read_through=read_through,
            settings=settings,
            service=service,
        )
        return self._shuffle

    def leave(self) -> None:
        if self._shuffle:
            self._shuffle.close()
            self._shuffle = None

    # -- reading ---------------------------------------------------------------------------

    def look(self, timeout_s: float = POLL_S, *, ordered: bool = False) -> Shown | None:
        """Take and read the next checkpoint, without committing it."""
        found = self.shuffle.next_checkpoint(timeout_s)
        return None if found is None else Shown(found, self.documents(found, ordered=ordered))

    def documents(self, checkpoint: NextCheckpoint, *, ordered: bool = False) -> list[Document]:
        return [
            Document(source.name, member, clock, fields)
            for member in range(self.shuffle.members)
            for source, batch in self.shuffle.read(member, checkpoint, ordered=ordered)
            for clock, fields in zip(batch["_clock"].to_pylist(), _fields(batch), strict=True)
        ]

    def commit(self, shown: Shown) -> None:
        self.checkpoint = Checkpoint.decode(self.checkpoint.merge(shown.checkpoint.delta).encode())
        self.shuffle.release(shown.checkpoint)

    def take(self, count: int, *, ordered: bool = False) -> list[Shown]:
        """Take and commit checkpoints until they have shown exactly `count` documents."""
        taken: list[Shown] = []
        deadline = time.monotonic() + POLL_S
        while (found := sum(len(each.documents) for each in taken)) < count:
            shown = self.look(deadline - time.monotonic(), ordered=ordered)
            assert shown is not None, f"{found} of {count} documents came: {self.shuffle.status()}"
            self.commit(shown)
            taken.append(shown)
        assert found == count
        return [each for each in taken if each.documents]

    # -- writing ---------------------------------------------------------------------------

    def journal(self, name: str) -> JournalId:
        return next(each.id for each in self.workspace.journals() if each.name == name)

    def writer(self, name: str) -> Writer:
        journals = self.workspace._connection.journals()
        return Writer(self, journals.open_publisher(name))

    def append(self, first: int, count: int) -> None:
        """Append to collection `a`, outside of any transaction."""
        self.workspace.append("a", [{"n": n} for n in range(first, first + count)])

    def close(self) -> None:
        self.leave()
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


Begin = Callable[..., Task]
"""Opens a task: takes the number of members and of journals per collection."""


class Writer:
    """Writes single frames with clocks that the test chooses."""

    def __init__(self, task: Task, lease: Lease) -> None:
        self._task = task
        self._journals = task.workspace._connection.journals()
        self.lease = lease

    def docs(
        self, journal: str, clock: int, *fields: dict[str, Any], flags: Flags = Flags.CONTINUE
    ) -> None:
        head = DocsHead(self._task.journal(journal), Clock(clock), len(fields), 0, flags)
        write = Write(self.lease.producer, self.lease.holder, (head,))
        self._journals.write(write, [self._body(journal, fields)]).result()

    def docs_unchecked(
        self, journal: str, clock: int, *fields: dict[str, Any], flags: Flags
    ) -> None:
        """Write a frame that the owner of the workspace would refuse."""
        ownership = self._task.workspace._connection.ownership
        assert ownership
        owner = ownership.owner
        body = self._body(journal, fields)
        (info,) = [each for each in self._task.workspace.journals() if each.name == journal]
        docs = Docs(info.id, info.head, self.lease.producer, Clock(clock), len(fields), 0, flags)
        with owner._planning, owner._deciding():
            done = owner._queue([owner._state._apply(docs, len(body))], [body])
        done.result()

    def commit(self, clock: int) -> None:
        write = Write(self.lease.producer, self.lease.holder, commit=CommitRequest(Clock(clock)))
        self._journals.write(write, []).result()

    def rollback(self) -> None:
        self._journals.rollback(self.lease.producer, self.lease.holder)

    def _body(self, journal: str, fields: Sequence[dict[str, Any]]) -> Any:
        collection = self._task.workspace.collection(journal.rpartition("/")[0])
        return pa.RecordBatch.from_pylist(list(fields), collection.schema).serialize()


def rows(first: int, count: int, text: str = "") -> list[dict[str, object]]:
    return [{"n": n, "text": text} for n in range(first, first + count)]


def _fields(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = batch.select(batch.schema.names[:-2]).to_pylist()
    return found


def swift(silence_s: float = 2.0) -> ServiceSettings:
    """Settings that notice a silent peer soon."""
    return msgspec.structs.replace(
        ServiceSettings(), heartbeat_s=silence_s / 10, silence_s=silence_s
    )


@contextmanager
def soon() -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < SOON_S


def threads_of_sessions() -> set[str]:
    """Names of the threads that Sessions, Slices and Queues run, also while they open."""
    names = ("headrace-session", "headrace-slice", "headrace-queue", "serve shuffle-sl")
    return {each.name for each in threading.enumerate() if each.name.startswith(names)}

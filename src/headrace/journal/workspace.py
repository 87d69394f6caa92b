"""A workspace: the collections, publishers and readers of one installation."""

from __future__ import annotations

import re
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from headrace.errors import BehindRetentionError, CommitOutcome, UsageError
from headrace.ids import Offset
from headrace.journal.collection import Collection, define
from headrace.journal.collection_follower import CollectionFollower
from headrace.journal.committed_documents import META_FIELDS, documents
from headrace.journal.contract import Frame, JournalInfo, Watch
from headrace.journal.documents.arrow_stream import is_streamed
from headrace.journal.location.workspace_connection import WorkspaceConnection
from headrace.journal.location.workspace_directory import WorkspaceDirectory
from headrace.journal.location.workspace_ref import WorkspaceRef
from headrace.journal.names import Selector, parse_journal_name
from headrace.journal.publisher import Participant, Publisher
from headrace.journal.wire.failover import FailoverWatch
from headrace.journal.write.commit_id import parse_commit_id
from headrace.journal.write.outside_append import append_outside
from headrace.journal.write.producer_pool import ProducerPool
from headrace.journal.write.write_buffer import Documents, ProducerWriter
from headrace.settings import Settings
from headrace.storage import Objects, open_objects

_INVITATION = re.compile("[0-9a-f]{16}")


class Workspace:
    """Open one with `headrace.open`. Any thread may use it."""

    def __init__(
        self,
        location: str | Path,
        settings: Settings | None = None,
        *,
        create: bool = True,
        identity: str = "",
        directory: WorkspaceDirectory | None = None,
    ) -> None:
        self.location = str(location)
        settings = settings or Settings()
        self._connection = WorkspaceConnection(
            location, settings, create=create, identity=identity, directory=directory
        )
        self._pool = ProducerPool(self.location, self._connection, settings.journal)

    # -- collections and journals ----------------------------------------------------------

    def collection(
        self,
        name: str,
        schema: str | pa.Schema | None = None,
        *,
        key: str | Sequence[str] = (),
        partition_by: str | Sequence[str] = (),
        journals: int = 1,
        retention_s: float | None = None,
        retention_bytes: int | None = None,
    ) -> Collection:
        """Return the collection of that name. With a schema, create it or evolve it first.

        `schema` is a Spark DDL string or an Arrow schema. Documents with equal `key` keep their
        order. Each combination of `partition_by` values has `journals` journals of its own.
        Retention applies to each journal, and removes whole frames, oldest first.
        """
        if schema is None:
            return self._pool.existing(name)
        wanted = define(
            name,
            schema,
            key=key,
            partition_by=partition_by,
            journals=journals,
            retention_s=retention_s,
            retention_bytes=retention_bytes,
        )
        return Collection(self._connection.call(lambda j: j.put_collection(wanted)))

    def collections(self) -> list[Collection]:
        """Return all collections, by name."""
        return self._pool.collections()

    def delete_collection(self, name: str) -> None:
        """Delete a collection with its journals and documents.

        A new collection of the same name shares nothing with it.
        """
        self._connection.journals().delete_collection(name)
        self._pool.forget_journals()

    def journals(self, selector: Selector | None = None) -> list[JournalInfo]:
        """Return matching journals by name, as of one moment: it shows only whole transactions."""
        return self._connection.call(lambda j: j.journals(selector or Selector()))

    def journals_named(self, names: Sequence[str]) -> list[JournalInfo]:
        """Return those of the named journals that exist, in the order of the names.

        It takes no longer if the workspace has many journals.
        """
        return self._connection.call(lambda j: j.journals_named(names))

    def delete_journals(self, names: Sequence[str]) -> None:
        self._connection.journals().delete_journals(names)
        self._pool.forget_journals()

    def watch(self, *selectors: Selector) -> Watch:
        """Watch journals come and go, and their heads move, whichever process owns the workspace.

        The watch sees journals that any of the selectors matches; without selectors, all journals.
        """
        return FailoverWatch(self._connection, *selectors)

    # -- publishing ------------------------------------------------------------------------

    def publisher(self, name: str = "") -> Publisher:
        """Open a publisher. With a name, it takes over from the previous one of that name."""
        return Publisher(self._pool, name)

    def payloads(self, prefix: str) -> dict[str, bytes]:
        """Return the last payload of each publisher whose name begins so, and fence nobody."""
        return self._connection.call(lambda journals: journals.publisher_payloads(prefix))

    def append(self, collection: Collection | str, documents: Documents) -> int:
        """Append documents outside of any transaction; return their number once they are durable.

        Raises InDoubtError if nobody can tell in time whether they are there, or if the owner died
        during the append and only some are. After any other error of Headrace none is there.

        Documents that are read piece by piece, such as a DataFrame or a large table, get a
        transaction of their own: all become visible at once.
        """
        if is_streamed(documents):
            with self.publisher() as tx:
                return tx.append(collection, documents)
        return append_outside(self._pool, self._pool.resolve(collection), documents)

    def outcome(self, id: str, timeout_s: float = 30.0) -> CommitOutcome:
        """Return what became of the commit that an InDoubtError or `PendingCommit.id` names.

        Any process may ask. A commit that has not taken effect never will: asking fences its
        sender. Raises InDoubtError if nobody can tell within `timeout_s`.
        """
        return self._pool.inquiry(parse_commit_id(id)).outcome(timeout_s)

    def join(self, invitation: str) -> Participant:
        """Take part in a transaction whose coordinator, in any process, called `invite`."""
        if not _INVITATION.fullmatch(invitation):
            raise UsageError(
                f"{invitation!r} is not an invitation", do="pass what `invite` returned"
            )
        number = int(invitation, 16)
        journals = self._connection.journals()
        return Participant(self._pool, ProducerWriter(journals.join(number), journals))

    # -- reading ---------------------------------------------------------------------------

    def read(
        self,
        collection: Collection | str,
        *,
        selector: Selector | None = None,
        start: Mapping[str, int] | None = None,
        meta: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the documents committed up to now, the same transactions in all journals.

        They come journal after journal. `selector` narrows the journals; `start` holds offsets to
        begin at, by journal name. In a journal without such an offset, the read leaves out what
        retention removes meanwhile. `meta` adds the columns `_journal`, `_producer` and `_clock`.
        """
        name = collection if isinstance(collection, str) else collection.name
        journals = self.journals(_narrowed(selector or Selector(), name))
        # Looked up after the journals: it has every schema that one of their frames can have.
        source = self._pool.existing(name)
        offsets = _checked_start(start, name, journals)
        return (
            documents(source, journal.name, frame, meta=meta)
            for journal in journals
            for frame in (
                self.frames(journal, offsets[journal.name])
                if journal.name in offsets
                else self.kept_frames(journal)
            )
        )

    def follow(
        self,
        collection: Collection | str,
        *,
        selector: Selector | None = None,
        start: Mapping[str, int] | None = None,
        meta: bool = False,
        stop: threading.Event | None = None,
    ) -> Generator[pa.RecordBatch, None, None]:
        """Yield the committed documents up to now, then those of each transaction that commits.

        The iterator ends soon after `stop` is set, or when you close it. If the owner of the
        workspace dies, the iterator continues with the next owner where it was. `selector`, `start`
        and `meta` mean the same as in `read`. A transaction over several journals arrives journal
        by journal; `headrace.follow`, through a shuffle, shows it as a whole.
        """
        name = collection if isinstance(collection, str) else collection.name
        narrowed = _narrowed(selector or Selector(), name)
        offsets = _checked_start(start, name, self.journals(narrowed)) if start else {}
        follower = CollectionFollower(self, name, narrowed, offsets, stop or threading.Event())
        return follower.batches(meta=meta)

    def table(self, collection: Collection | str, **options: Any) -> pa.Table:
        """Return what `read` yields as one table."""
        batches = list(self.read(collection, **options))
        if batches:
            return pa.Table.from_batches(batches)
        meta = META_FIELDS if options.get("meta") else ()
        return pa.schema([*self._pool.newest(collection).schema, *meta]).empty_table()

    def frames(
        self, journal: JournalInfo, offset: int | None = None, *, committed: bool = True
    ) -> Iterator[Frame]:
        """Yield the frames from an offset up to the head that `journal` has.

        These are the committed frames, each where its transaction committed; or with
        `committed=False` all frames in their order, ACKs with their hints.
        """
        begin = Offset(journal.begin if offset is None else offset)
        return self._connection.journals().read(journal.id, begin, journal.head, committed)

    def fetch(self, journal: JournalInfo, offset: int, bytes_max: int) -> Future[list[Frame]]:
        """Get about `bytes_max` of frames from an offset on, committed or not.

        A reader of many journals can fetch from all of them at once.
        """
        journals = self._connection.journals()
        return journals.fetch(journal.id, Offset(offset), journal.head, bytes_max)

    def kept_frames(self, journal: JournalInfo) -> Iterator[Frame]:
        """Yield the committed frames up to the head that `journal` has.

        Leaves out what retention removes meanwhile.
        """
        collection = parse_journal_name(journal.name).collection
        begin: int = journal.begin
        while begin < journal.head:
            try:
                yield from self.frames(journal, begin)
                return
            except BehindRetentionError:
                found = self.journals(Selector(collection))
            begin = next((each.begin for each in found if each.id == journal.id), journal.head)

    # -- the rest --------------------------------------------------------------------------

    @property
    def settings(self) -> Settings:
        """The settings that the workspace was opened with in this process."""
        return self._connection.settings

    @property
    def directory(self) -> Path | None:
        """The directory of the workspace; None if it is known by the address of its owner."""
        return self._connection.directory

    def reach(self) -> WorkspaceRef:
        """Return a reference with which other processes, on any machine, open this workspace."""
        return self._connection.reach()

    @property
    def address(self) -> str | None:
        """The address at which others reach this workspace, if this process owns it."""
        ownership = self._connection.ownership
        return ownership.address if ownership else None

    @property
    def objects(self) -> Objects:
        """The objects of the workspace, such as the checkpoints of tasks."""
        if self.directory is None:
            raise UsageError(
                f"{self.location} is known by its address, and its objects lie in its directory",
                do="open it by its directory, on the machine where that is",
            )
        return open_objects(str(self.directory / "objects"))

    def trim(self, journal: JournalInfo, offset: int) -> None:
        """Remove the frames of a journal below `offset`, but for the last that has documents.

        It stays so that whoever has read it to its end can go on behind it.
        """
        self._connection.call(lambda journals: journals.trim(journal.id, Offset(offset)))

    def maintain(self) -> None:
        """Apply retention, save the index and rewrite old segments now, if this is the owner."""
        if ownership := self._connection.ownership:
            ownership.maintenance.run_round()

    def close(self) -> None:
        """Close the workspace and roll back what is not committed. Closing twice is harmless."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Workspace({self.location!r})"


def _checked_start(
    start: Mapping[str, int] | None, collection: str, journals: Sequence[JournalInfo]
) -> dict[str, int]:
    offsets = dict(start or {})
    if unknown := offsets.keys() - {journal.name for journal in journals}:
        raise UsageError(
            f"the read of {collection!r} has no journal {min(unknown)!r}",
            do="start at journals that `headrace journals list` names",
        )
    return offsets


def _narrowed(selector: Selector, collection: str) -> Selector:
    """Return the part of a selector that lies in the collection."""
    if selector.collection not in ("", collection):
        raise UsageError(
            f"the selector is for {selector.collection!r}, but the read is of {collection!r}",
            do="select journals of the collection that is read",
        )
    return Selector(collection, selector.include, selector.exclude)

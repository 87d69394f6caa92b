"""The pool of producers of one workspace, with the journals and collections it knows."""

from __future__ import annotations

import threading
from contextlib import suppress

from headrace.errors import FencedError, NotFoundError, PeerLostError, UsageError
from headrace.journal.collection import Collection
from headrace.journal.contract import Written
from headrace.journal.location.workspace_connection import WorkspaceConnection
from headrace.journal.sequencer import Flags
from headrace.journal.write.commit_id import CommitId
from headrace.journal.write.partitioner import Partitioner
from headrace.journal.write.pending_commit import OutcomeInquiry
from headrace.journal.write.write_buffer import ProducerWriter, WriteBuffer
from headrace.settings import JournalSettings

_POOLED_MAX = 64


class ProducerPool:
    """Lends producers to the publishers of a workspace. Any thread may use it."""

    def __init__(
        self, location: str, connection: WorkspaceConnection, settings: JournalSettings
    ) -> None:
        self._location = location
        self._connection = connection
        self._settings = settings
        self._lock = threading.Lock()
        self._idle: list[ProducerWriter] = []
        self._partitioner = Partitioner(connection.journals())

    def collections(self) -> list[Collection]:
        return [Collection(each) for each in self._connection.call(lambda j: j.collections())]

    def existing(self, name: str) -> Collection:
        known = {collection.name: collection for collection in self.collections()}
        if name not in known:
            raise NotFoundError(
                f"{self._location} has no collection {name!r}, only: {', '.join(known) or 'none'}",
                do="create it with `headrace collections create`",
            )
        return known[name]

    def resolve(self, collection: Collection | str) -> Collection:
        if isinstance(collection, Collection):
            return collection
        if isinstance(collection, str):
            return self.existing(collection)
        raise UsageError(
            f"{collection!r} is no collection", do="give its name, or what ws.collection returned"
        )

    def newest(self, collection: Collection | str) -> Collection:
        """Return the collection as it is now: its schema may have grown since."""
        return self.existing(
            collection if isinstance(collection, str) else self.resolve(collection).name
        )

    def take_writer(self, name: str, following: ProducerWriter | None = None) -> ProducerWriter:
        """Take over a name; without a name, take a producer from the pool.

        The producer is `following` itself while that has commits under way and nobody uses it.
        """
        journals = self._connection.journals()
        if not name:
            with self._lock:
                if following and following.commits_under_way and not following.taken:
                    following.taken = True
                    return following
                while self._idle:
                    writer = self._idle.pop()
                    if writer.journals is journals and not writer.broken:
                        writer.taken = True
                        return writer
        return self._connection.call(lambda j: ProducerWriter(j.open_publisher(name), j))

    def give_back(self, writer: ProducerWriter) -> None:
        """Return a writer to the pool for the next anonymous publisher; it has nothing open."""
        with self._lock:
            writer.taken = False
            if writer.commits_under_way:
                return
            if len(self._idle) < _POOLED_MAX:
                self._idle.append(writer)
                return
        # The lease of a writer that was lost or refused has ended already.
        with suppress(PeerLostError, FencedError):
            writer.journals.close_publisher(writer.lease.producer, writer.lease.holder)

    def give_back_when_done(self, writer: ProducerWriter, commit: Written) -> None:
        """Return a writer to the pool when its commit is answered.

        Until then only the same publisher may use it: if the owner refuses the commit, it refuses
        everything after it.
        """
        with self._lock:
            writer.taken = False
            writer.commits_under_way += 1
        commit.add_done_callback(lambda _: self._commit_is_done(writer))

    def _commit_is_done(self, writer: ProducerWriter) -> None:
        with self._lock:
            writer.commits_under_way -= 1
            if not writer.taken and not writer.commits_under_way and not writer.broken:
                self._idle.append(writer)

    def write_buffer(self, writer: ProducerWriter, flags: Flags) -> WriteBuffer:
        with self._lock:
            if self._partitioner.journals is not writer.journals:
                self._partitioner = Partitioner(writer.journals)
            return WriteBuffer(writer, self._partitioner, self._settings, flags)

    def forget_journals(self) -> None:
        self._partitioner.forget()

    def inquiry(self, id: CommitId) -> OutcomeInquiry:
        return OutcomeInquiry(self._connection, id)

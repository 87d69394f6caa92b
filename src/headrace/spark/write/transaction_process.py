"""The transaction process: it runs beside Spark's processes and holds the transactions of writes.

Spark plans a write in one process, commits it in another, and may end either of them while the
write's tasks run. So neither can hold the transaction. The process that plans a write starts this
one, which begins a transaction for each write. The process that commits a write hands over the
parts to commit.

Whatever is killed, a write is committed whole or not at all, and nobody waits for ever. A
transaction ends with this process. This process ends when Spark's process is gone, or when the
process that started it is gone and no write is left. Once a second it asks whether its transactions
are still open. It gives up those whose publisher was taken over or whose owner was lost.
"""

from __future__ import annotations

import os
import secrets
import select
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import ExitStack, suppress
from typing import Any, NoReturn

import msgspec
import pyarrow as pa

from headrace.decoders import decode_json
from headrace.errors import (
    REPORT,
    HeadraceError,
    InDoubtError,
    PeerLostError,
    PublishError,
    TransportError,
    UsageError,
)
from headrace.journal.location.workspace_ref import WorkspaceRef
from headrace.settings import ServiceSettings
from headrace.spark.column_check import check_written_columns
from headrace.spark.source.workspace_option import SharedWorkspaces, WorkspaceLocation
from headrace.spark.write.commit_payload import (
    QueryBatch,
    decode_payload,
    encode_payload,
    is_published,
)
from headrace.transport import Channel, Client, Message, Server

_KIND = "spark-writes"
_MODULE = "headrace.spark.write.transaction_process"
_START_S = 60.0
_LOOK_S = 1.0
_STREAM_REMEDY = (
    "start the query again: its publisher knows what is committed, and nothing is written twice"
)


class BeginWrite(msgspec.Struct, frozen=True, tag="begin"):
    location: WorkspaceLocation
    collection: str
    schema: bytes
    """The schema of the rows, as Arrow writes it."""
    publisher: str = ""


class CommitWrite(msgspec.Struct, frozen=True, tag="commit"):
    invitation: str
    parts: list[str]
    """The parts that the winning attempts of Spark's tasks prepared."""
    batch: QueryBatch | None = None


class AbortWrite(msgspec.Struct, frozen=True, tag="abort"):
    invitation: str


class WriteBegun(msgspec.Struct, frozen=True, tag="begun"):
    invitation: str
    workspace: WorkspaceRef


class WriteEnded(msgspec.Struct, frozen=True, tag="ended"):
    pass


Request = BeginWrite | CommitWrite | AbortWrite
Reply = WriteBegun | WriteEnded

_replies: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


class _StartOptions(msgspec.Struct, frozen=True):
    token: str
    spark: int
    """The id of Spark's process. When that ends, the transaction process ends, and all writes."""


class HeldWrite(msgspec.Struct, frozen=True):
    """A write that the transaction process holds. It can be sent to any process of the driver."""

    address: str
    token: str
    invitation: str
    workspace: WorkspaceRef
    """The workspace in which Spark's tasks join the transaction."""

    def commit(self, parts: list[str], batch: QueryBatch | None = None) -> None:
        """Make all parts visible at once. Does nothing if the batch was committed before."""
        try:
            self._ask(CommitWrite(self.invitation, parts, batch))
        except PeerLostError as lost:
            raise _in_doubt(lost, batch) from lost

    def abort(self) -> None:
        # If the transaction process is gone, the transaction is rolled back already.
        with suppress(PeerLostError):
            self._ask(AbortWrite(self.invitation))

    def _ask(self, request: CommitWrite | AbortWrite) -> None:
        _ask(self.address, self.token, request)


def begin(asked: BeginWrite) -> HeldWrite:
    """Begin the transaction of a write, in the transaction process that this process started."""
    global _mine
    if _mine:
        try:
            return _mine.begin(asked)
        except PeerLostError:
            _mine.close()
    _mine = TransactionProcess(os.getppid())
    return _mine.begin(asked)


class TransactionProcess:
    """A transaction process that this process started."""

    def __init__(self, spark: int) -> None:
        """`spark` is the id of the process that it must not outlive."""
        self._token = secrets.token_urlsafe(32)
        # Spark adds to the path of this process, but not to its environment.
        path = os.pathsep.join(filter(None, sys.path))
        self.process = subprocess.Popen(
            [sys.executable, "-m", _MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
        assert self.process.stdin
        assert self.process.stdout
        # A process that ended at once writes no address, which is handled below.
        with suppress(BrokenPipeError):
            self.process.stdin.write(msgspec.json.encode(_StartOptions(self._token, spark)) + b"\n")
            self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], _START_S)
        self._address = self.process.stdout.readline().decode().strip() if ready else ""
        if not self._address:
            self.close()
            raise PeerLostError(
                f"the transaction process did not start: {sys.executable} -m {_MODULE}",
                do="read what it wrote to the log of the Spark driver",
            )

    def begin(self, asked: BeginWrite) -> HeldWrite:
        begun = _ask(self._address, self._token, asked)
        assert isinstance(begun, WriteBegun)
        return HeldWrite(self._address, self._token, begun.invitation, begun.workspace)

    def close(self) -> None:
        """Begin no more writes: the process ends with the last write that it holds."""
        assert self.process.stdin
        assert self.process.stdout
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()


_mine: TransactionProcess | None = None
"""The one that this process started. Spark plans one write after the other in this process."""


def _ask(address: str, token: str, request: Request) -> Reply:
    with Client(address, ServiceSettings(token=token)) as client:
        try:
            channel = client.converse(_KIND, _replies)
        except PeerLostError as lost:
            if isinstance(request, CommitWrite):
                # The request was not sent, and the transaction ended with its process.
                raise _rolled_back() from lost
            raise
        channel.send(request)
        if (answer := channel.receive()) is None:
            raise PeerLostError(
                f"the transaction process at {address} did not answer", do="write again"
            )
        # The answer holds, whatever becomes of the process.
        with suppress(TransportError):
            channel.close()
        return answer.control


def _in_doubt(why: PeerLostError, batch: QueryBatch | None) -> InDoubtError:
    """Nobody can be asked: only the transaction process knew the id of the commit."""
    return InDoubtError(
        f"nobody knows whether the write committed: {why.what}",
        do=_STREAM_REMEDY if batch else "look for its documents before you write them again",
    )


# -- in the transaction process ------------------------------------------------------------


class _OpenWrite:
    """One transaction. It keeps its workspace open."""

    def __init__(self, asked: BeginWrite, workspaces: SharedWorkspaces) -> None:
        self.lock = threading.Lock()
        with ExitStack() as stack:
            self._workspace = stack.enter_context(workspaces.opened(asked.location))
            check_written_columns(
                self._workspace.collection(asked.collection), _schema(asked.schema)
            )
            publisher = self._workspace.publisher(asked.publisher)
            stack.callback(publisher.close)
            self._publisher = asked.publisher
            self._last = decode_payload(publisher.payload, QueryBatch, publisher.name)
            self._transaction = publisher.begin()
            self.invitation = self._transaction.invite()
            self.reach = self._workspace.reach()
            self._open = stack.pop_all()

    def commit(self, parts: list[str], batch: QueryBatch | None) -> None:
        if batch and is_published(self._last, batch, self._publisher):
            return
        for part in parts:
            self._transaction.include(part)
        try:
            self._transaction.commit(encode_payload(batch))
        except InDoubtError as error:
            raise InDoubtError(error.what, do=_STREAM_REMEDY if batch else error.do) from error

    def check(self) -> None:
        """Raise an error if nobody can join the transaction any more."""
        self._workspace.join(self.invitation).abandon()

    def close(self) -> None:
        """Roll back what was not committed."""
        self._open.close()


class _OpenWrites:
    """`transport.Service` for the processes of one Spark driver."""

    requests = msgspec.msgpack.Decoder(Request)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._workspaces = SharedWorkspaces()
        self._writes: dict[str, _OpenWrite] = {}
        self._conversations = 0

    @property
    def is_idle(self) -> bool:
        """True if there is no write, and nobody waits for an answer."""
        with self._lock:
            return not self._writes and not self._conversations

    def converse(self, channel: Channel[Request]) -> None:
        with self._lock:
            self._conversations += 1
        try:
            if message := channel.receive():
                self._answer(message.control, channel)
        finally:
            with self._lock:
                self._conversations -= 1

    def _answer(self, asked: Request, channel: Channel[Any]) -> None:
        match asked:
            case BeginWrite():
                self._begin(asked, channel)
                return
            case CommitWrite():
                self._commit(asked)
            case AbortWrite():
                if write := self._writes.get(asked.invitation):
                    with write.lock:
                        self._end(write)
        channel.send(WriteEnded())
        # Wait until the caller has the answer, or is gone.
        with suppress(HeadraceError):
            channel.receive()

    def stream(self, request: Any, channel: Channel[Any]) -> Generator[Message[Any], None, None]:
        raise UsageError("the transaction process was asked to stream a write", do=REPORT)

    def _begin(self, asked: BeginWrite, channel: Channel[Any]) -> None:
        write = _OpenWrite(asked, self._workspaces)
        with self._lock:
            self._writes[write.invitation] = write
        try:
            channel.send(WriteBegun(write.invitation, write.reach))
            # Wait until the caller has the answer.
            channel.receive()
        except HeadraceError:
            with write.lock:
                self._end(write)
            raise

    def _commit(self, asked: CommitWrite) -> None:
        write = self._writes.get(asked.invitation)
        if write is None:
            raise _rolled_back()
        with write.lock:
            # Another thread may have given the write up before this one had the lock.
            if self._writes.get(asked.invitation) is not write:
                raise _rolled_back()
            try:
                write.commit(asked.parts, asked.batch)
            finally:
                # This process may own the workspace, and gives it up with its last write. It does
                # so before it answers: then others find out before the next write begins.
                self._end(write)

    def look(self) -> None:
        """Give up the writes whose transactions have ended elsewhere."""
        for write in list(self._writes.values()):
            if not write.lock.acquire(blocking=False):
                continue
            try:
                write.check()
            except HeadraceError:
                self._end(write)
            finally:
                write.lock.release()

    def close(self) -> None:
        for write in list(self._writes.values()):
            with write.lock:
                self._end(write)

    def _end(self, write: _OpenWrite) -> None:
        """Close a write. The caller holds its lock."""
        # If this process cannot roll it back, the next owner of the workspace does.
        with suppress(HeadraceError):
            write.close()
        with self._lock:
            self._writes.pop(write.invitation, None)


def _rolled_back() -> PublishError:
    return PublishError(
        "the transaction of this write has ended, and nothing of it was committed",
        do="write again; if another query has the same publisher name, give it its own",
    )


def _schema(encoded: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(encoded))


def main() -> NoReturn:
    start = decode_json(sys.stdin.buffer.readline(), _StartOptions)
    writes = _OpenWrites()
    with Server({_KIND: writes}, ServiceSettings(token=start.token)) as server:
        sys.stdout.write(f"{server.address}\n")
        sys.stdout.flush()
        _run(writes, start.spark)
    sys.exit(0)


def _run(writes: _OpenWrites, spark: int) -> None:
    """Serve until Spark is gone, or until the starting process and every write are gone."""
    try:
        spark_end = os.pidfd_open(spark)
    except ProcessLookupError:
        return
    events = select.poll()
    events.register(spark_end, select.POLLIN)
    # The starting process sends nothing more, so this is readable once its other end is closed.
    starter_end = sys.stdin.fileno()
    events.register(starter_end, select.POLLIN)
    is_started = True
    while is_started or not writes.is_idle:
        ended = {descriptor for descriptor, _ in events.poll(_LOOK_S * 1000)}
        if spark_end in ended:
            break
        if starter_end in ended:
            events.unregister(starter_end)
            is_started = False
        writes.look()
    writes.close()


if __name__ == "__main__":
    main()

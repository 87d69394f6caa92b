"""A process beside Spark's that holds the transactions of its writes.

Spark plans a write in one process and commits it in another, and may end either of them while the
tasks run: neither can hold a transaction. The planning process starts this one, which begins a
transaction for each write and commits what the process that Spark commits in hands to it.

Whatever is killed, a write is committed whole or not at all, and nobody waits for ever. A
transaction ends with this process, which ends when Spark's is gone, or when the process that
started it is gone and no write is left. It asks once a second whether its transactions are still
open: those whose publisher was taken over, or whose owner was lost, it gives up.
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

from headrace.errors import (
    REPORT,
    DataError,
    HeadraceError,
    InDoubtError,
    PeerLostError,
    PublishError,
    TransportError,
    UsageError,
)
from headrace.journal.location.workspace_ref import WorkspaceRef
from headrace.journal.publisher import Publisher
from headrace.settings import ServiceSettings
from headrace.spark.source.workspace_option import Place, Places
from headrace.spark.write.schema_check import check_fits
from headrace.transport import Channel, Client, Message, Server

_KIND = "spark-writes"
_MODULE = "headrace.spark.write.transaction_process"
_START_S = 60.0
_LOOK_S = 1.0
_STREAM_REMEDY = "start the query again: its publisher knows, and nothing is written twice"


class Batch(msgspec.Struct, frozen=True, tag="spark-batch"):
    """A micro-batch of a query: the payload of its commit."""

    query: str
    """Spark's id of it, which lies in its checkpoint directory."""
    number: int


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    place: Place
    collection: str
    schema: bytes
    """Of the rows, as Arrow writes it."""
    publisher: str = ""


class Commit(msgspec.Struct, frozen=True, tag="commit"):
    invitation: str
    parts: list[str]
    """What the attempts that won prepared."""
    batch: Batch | None = None


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    invitation: str


class Begun(msgspec.Struct, frozen=True, tag="begun"):
    invitation: str
    workspace: WorkspaceRef


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    pass


_replies: msgspec.msgpack.Decoder[Begun | Ended] = msgspec.msgpack.Decoder(Begun | Ended)


class _Start(msgspec.Struct, frozen=True):
    token: str
    spark: int
    """The process whose end is the end of all its writes."""


class Coordinated(msgspec.Struct, frozen=True):
    """A write that a coordinator holds, in a form that travels to any process of the driver."""

    address: str
    token: str
    invitation: str
    workspace: WorkspaceRef
    """Whose transaction it is, for the tasks that join it."""

    def commit(self, parts: list[str], batch: Batch | None = None) -> None:
        """Make the parts visible at once; a batch that was committed before is not again."""
        try:
            self._ask(Commit(self.invitation, parts, batch))
        except PeerLostError as lost:
            raise _in_doubt(lost, batch) from lost

    def abort(self) -> None:
        # Without its coordinator it is rolled back.
        with suppress(PeerLostError):
            self._ask(Abort(self.invitation))

    def _ask(self, request: Commit | Abort) -> None:
        _ask(self.address, self.token, request)


def begin(asked: Begin) -> Coordinated:
    """Begin the transaction of a write, through the coordinator of this process."""
    global _mine
    if _mine:
        try:
            return _mine.begin(asked)
        except PeerLostError:
            _mine.close()
    _mine = Started(os.getppid())
    return _mine.begin(asked)


class Started:
    """A coordinator that this process started."""

    def __init__(self, spark: int) -> None:
        """`spark` is the process that it must not outlive."""
        self._token = secrets.token_urlsafe(32)
        # What Spark added to the path of this process is not in its environment.
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
        # A process that ended at once says nothing, which is seen below.
        with suppress(BrokenPipeError):
            self.process.stdin.write(msgspec.json.encode(_Start(self._token, spark)) + b"\n")
            self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], _START_S)
        self._address = self.process.stdout.readline().decode().strip() if ready else ""
        if not self._address:
            self.close()
            raise PeerLostError(
                f"the process that coordinates writes did not start: {sys.executable} -m {_MODULE}",
                do="see what it wrote to the log of the Spark driver",
            )

    def begin(self, asked: Begin) -> Coordinated:
        begun = _ask(self._address, self._token, asked)
        assert isinstance(begun, Begun)
        return Coordinated(self._address, self._token, begun.invitation, begun.workspace)

    def close(self) -> None:
        """Start no more: it ends with the last write that it has."""
        assert self.process.stdin
        assert self.process.stdout
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()


_mine: Started | None = None
"""Of this process, which Spark uses for one plan after the other."""


def _ask(address: str, token: str, request: Begin | Commit | Abort) -> Begun | Ended:
    with Client(address, ServiceSettings(token=token)) as client:
        try:
            channel = client.converse(_KIND, _replies)
        except PeerLostError as lost:
            if isinstance(request, Commit):
                # Nothing was asked, and the transaction ends with its coordinator.
                raise _rolled_back() from lost
            raise
        channel.send(request)
        if (answer := channel.receive()) is None:
            raise PeerLostError(f"the coordinator at {address} did not answer", do="write again")
        # What it answered holds, whatever becomes of it.
        with suppress(TransportError):
            channel.close()
        return answer.control


def _in_doubt(why: PeerLostError, batch: Batch | None) -> InDoubtError:
    """Only the coordinator knew the id of the commit."""
    return InDoubtError(
        f"whether the write was committed is not known: {why.what}",
        do=_STREAM_REMEDY if batch else "look for its documents before you write them again",
    )


# In the process of its own.


class _Write:
    """One transaction. Its workspace is open for as long as that is."""

    def __init__(self, asked: Begin, places: Places) -> None:
        self.lock = threading.Lock()
        with ExitStack() as stack:
            self._workspace = stack.enter_context(places.opened(asked.place))
            check_fits(self._workspace.collection(asked.collection), _schema(asked.schema))
            publisher = self._workspace.publisher(asked.publisher)
            stack.callback(publisher.close)
            self._publisher = asked.publisher
            self._last = _last(publisher)
            self._transaction = publisher.begin()
            self.invitation = self._transaction.invite()
            self.reach = self._workspace.reach()
            self._open = stack.pop_all()

    def commit(self, parts: list[str], batch: Batch | None) -> None:
        if batch and _is_replayed(self._publisher, self._last, batch):
            return
        for part in parts:
            self._transaction.include(part)
        try:
            self._transaction.commit(msgspec.json.encode(batch) if batch else b"")
        except InDoubtError as error:
            raise InDoubtError(error.what, do=_STREAM_REMEDY if batch else error.do) from error

    def check(self) -> None:
        """Raises once nobody can join it any more."""
        self._workspace.join(self.invitation).abandon()

    def close(self) -> None:
        """What was not committed is rolled back."""
        self._open.close()


class _Writes:
    """`transport.Service` for the processes of one Spark driver."""

    requests = msgspec.msgpack.Decoder(Begin | Commit | Abort)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places = Places()
        self._writes: dict[str, _Write] = {}
        self._conversations = 0

    @property
    def is_idle(self) -> bool:
        """Whether there is no write, and nobody who waits for an answer."""
        with self._lock:
            return not self._writes and not self._conversations

    def converse(self, channel: Channel[Begin | Commit | Abort]) -> None:
        with self._lock:
            self._conversations += 1
        try:
            if message := channel.receive():
                self._answer(message.control, channel)
        finally:
            with self._lock:
                self._conversations -= 1

    def _answer(self, asked: Begin | Commit | Abort, channel: Channel[Any]) -> None:
        match asked:
            case Begin():
                self._begin(asked, channel)
                return
            case Commit():
                self._commit(asked)
            case Abort():
                if write := self._writes.get(asked.invitation):
                    with write.lock:
                        self._end(write)
        channel.send(Ended())
        # Until the caller has it, or is gone.
        with suppress(HeadraceError):
            channel.receive()

    def stream(self, request: Any, channel: Channel[Any]) -> Generator[Message[Any], None, None]:
        raise UsageError("writes converse", do=REPORT)

    def _begin(self, asked: Begin, channel: Channel[Any]) -> None:
        write = _Write(asked, self._places)
        with self._lock:
            self._writes[write.invitation] = write
        try:
            channel.send(Begun(write.invitation, write.reach))
            # Until the caller has it.
            channel.receive()
        except HeadraceError:
            with write.lock:
                self._end(write)
            raise

    def _commit(self, asked: Commit) -> None:
        write = self._writes.get(asked.invitation)
        if write is None:
            raise _rolled_back()
        with write.lock:
            # It may have been given up meanwhile.
            if self._writes.get(asked.invitation) is not write:
                raise _rolled_back()
            try:
                write.commit(asked.parts, asked.batch)
            finally:
                # Before the answer: whoever works through this process as the owner knows that it
                # has gone before the next write is begun.
                self._end(write)

    def look(self) -> None:
        """Give up what has ended elsewhere."""
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

    def _end(self, write: _Write) -> None:
        """By whoever has its lock."""
        # What cannot be rolled back here is by the next owner of the workspace.
        with suppress(HeadraceError):
            write.close()
        with self._lock:
            self._writes.pop(write.invitation, None)


def _rolled_back() -> PublishError:
    return PublishError(
        "the transaction of this write has ended, and nothing of it was committed",
        do="write again; if another query publishes under the same name, give it its own",
    )


def _schema(encoded: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(encoded))


def _last(publisher: Publisher) -> Batch | None:
    if not publisher.payload:
        return None
    try:
        return msgspec.json.decode(publisher.payload, type=Batch)
    except msgspec.MsgspecError as error:
        raise DataError(
            f"publisher {publisher.name!r} was not used by a query: {error}",
            do="publish under another name",
        ) from error


def _is_replayed(publisher: str, last: Batch | None, batch: Batch) -> bool:
    """Whether it was committed before; an error if it does not follow what was."""
    if last is None or batch == Batch(last.query, last.number + 1):
        return False
    if batch == last:
        return True
    if batch.query != last.query:
        raise UsageError(
            f"publisher {publisher!r} is at batch {last.number} of query {last.query}, and this is"
            f" batch {batch.number} of query {batch.query}: another checkpoint directory",
            do="use the directory that it had, or another publisher name",
        )
    raise UsageError(
        f"publisher {publisher!r} is at batch {last.number}, and the query at {batch.number}:"
        " its checkpoint directory is not the one that it had last",
        do="use that one, or another directory and another publisher name",
    )


def main() -> NoReturn:
    start = msgspec.json.decode(sys.stdin.buffer.readline(), type=_Start)
    writes = _Writes()
    with Server({_KIND: writes}, ServiceSettings(token=start.token)) as server:
        sys.stdout.write(f"{server.address}\n")
        sys.stdout.flush()
        _run(writes, start.spark)
    sys.exit(0)


def _run(writes: _Writes, spark: int) -> None:
    """Until Spark is gone, or whoever started this and every write."""
    try:
        spark_end = os.pidfd_open(spark)
    except ProcessLookupError:
        return
    events = select.poll()
    events.register(spark_end, select.POLLIN)
    # Nothing more comes from there: it is readable when its other end is closed.
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

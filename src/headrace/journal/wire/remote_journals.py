"""`Journals` in a process that works through the owner of the workspace."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

import msgspec
import numpy as np

from headrace.decoders import decode_msgpack
from headrace.errors import (
    DataError,
    HeadraceError,
    NotFoundError,
    PeerLostError,
    StorageError,
    TransportError,
    UsageError,
    from_wire,
)
from headrace.files import DirectoryIdentity, is_here, running_kernel
from headrace.ids import JournalId, Offset
from headrace.journal.contract import Changes, Frame, Write, Written
from headrace.journal.hint_tables import WIDE_BYTES, HintTable, HintTableCache
from headrace.journal.local.log_frames import decode_locations, stored_frames
from headrace.journal.local.records import ACK_ROW
from headrace.journal.names import Selector
from headrace.journal.wire import messages
from headrace.journal.wire.calls import Call, RemoteCalls
from headrace.journal.wire.frame_codec import Frames, decode_frames
from headrace.journal.wire.messages import (
    Ask,
    Changed,
    Fetched,
    FetchRequest,
    JournalAnswer,
    Located,
    replies,
)
from headrace.log import LogFiles
from headrace.settings import ServiceSettings
from headrace.transport import Client, Stream


class RemoteJournals(RemoteCalls):
    """One conversation with the owner, which answers pipelined requests in any order."""

    def __init__(
        self, address: str, settings: ServiceSettings, kind: str = messages.JOURNALS
    ) -> None:
        self._kind = kind
        self._silence_s = settings.silence_s
        self._client = Client(address, settings)
        self._numbers = count()
        self._lock = threading.Lock()
        self._unanswered: dict[int, tuple[Future[Any], Any]] = {}
        self._lost: HeadraceError | None = None
        self._closing = False
        self._tables: HintTableCache[HintTable] = HintTableCache()
        self._kernel = running_kernel()
        """Empty once this process knows that it cannot read the files of the log."""
        self._here: DirectoryIdentity | None = None
        """The directory of the log, once this process has seen it. An owner keeps its directory."""
        try:
            self._channel = self._client.converse(kind, replies)
        except BaseException:
            self._client.close()
            raise
        self._listener = threading.Thread(target=self._listen, name="headrace-remote", daemon=True)
        self._listener.start()

    def write(self, write: Write, bodies: Sequence[Any]) -> Written:
        return self._ask(write, bodies, tuple[Offset, ...])

    def read(
        self, journal: JournalId, offset: Offset, through: Offset, committed: bool
    ) -> Iterator[Frame]:
        with self._stream(messages.ReadRequest(journal, offset, through, committed)) as stream:
            for message in stream:
                assert isinstance(message.control, Frames)
                frames = message.control
                tables = [np.frombuffer(rows, ACK_ROW) for rows in frames.hints]
                yield from decode_frames(journal, frames, message.bodies, tables)

    def fetch(
        self, journal: JournalId, offset: Offset, through: Offset, bytes_max: int
    ) -> Future[list[Frame]]:
        fetch = FetchRequest(journal, offset, through, bytes_max, self._kernel)
        return self._ask(fetch, (), fetch)

    def at_most_bytes(self, offset: Offset, through: Offset) -> int:
        return through - offset

    def watch(self, *selectors: Selector) -> RemoteWatch:
        return RemoteWatch(self._stream(messages.Observe(selectors)))

    def close(self) -> None:
        """Wait for the answers under way, and leave; the owner rolls back what is pending."""
        self._closing = True
        with self._lock:
            futures = [future for future, _ in self._unanswered.values()]
        wait(futures, self._silence_s)
        # Whoever waited for an answer got the error already.
        with suppress(HeadraceError):
            self._channel.close()
        self._client.close()
        self._listener.join()

    @property
    def is_lost(self) -> bool:
        """True if the conversation has ended, so that nobody can ask any more."""
        return self._lost is not None

    def _stream(self, request: messages.ReadRequest | messages.Observe) -> Stream[messages.Reply]:
        if self._lost:
            raise self._lost
        with self._lost_if_closing():
            return self._client.stream(self._kind, request, replies)

    @contextmanager
    def _lost_if_closing(self) -> Iterator[None]:
        """Raise PeerLostError if another thread closes these journals during the block."""
        try:
            yield
        except UsageError as error:
            if not self._closing:
                raise
            raise PeerLostError(error.what, do="ask the next owner") from error

    def call(self, call: Call) -> Any:
        return self._ask(call, (), call.answer).result()

    def _ask(self, call: Any, bodies: Sequence[Any], expected: Any = None) -> Future[Any]:
        future: Future[Any] = Future()
        number = next(self._numbers)
        try:
            with self._lock:
                if self._lost:
                    raise self._lost
                self._unanswered[number] = future, expected
            with self._lost_if_closing():
                self._channel.send(Ask(number, call), bodies)
        except BaseException:
            # An interrupted request may have been sent, and then its answer finds nobody.
            with self._lock:
                self._unanswered.pop(number, None)
            raise
        return future

    def _listen(self) -> None:
        lost: HeadraceError = PeerLostError("the owner of the workspace closed it", do="try again")
        try:
            while (message := self._channel.receive()) is not None:
                assert isinstance(message.control, JournalAnswer | Fetched | Located)
                self._settle(message.control, message.bodies)
        except TransportError as error:
            lost = error
        except HeadraceError as error:
            # The owner gave the conversation up. It may have carried out any open request.
            lost = PeerLostError(error.what, do=error.do)
            self._channel.fail(lost)
        except Exception as error:  # noqa: BLE001  all who wait get it, and the owner
            what = (
                "the owner of the workspace sent an answer that cannot be read:"
                f" {type(error).__name__}: {error}"
            )
            lost = PeerLostError(what, do="run the same version of Headrace in all processes")
            self._channel.fail(lost)
        with self._lock:
            self._lost = lost
            # A fetch that was repeated may be there twice.
            futures = {future for future, _ in self._unanswered.values() if not future.done()}
            self._unanswered = {}
        for future in futures:
            future.set_exception(lost)

    def _settle(self, answer: JournalAnswer | Fetched | Located, bodies: Sequence[Any]) -> None:
        with self._lock:
            waiting = self._unanswered.get(answer.number)
        if waiting is None:
            return  # The caller was interrupted and no longer waits.
        self._fulfil(*waiting, answer, bodies)
        with self._lock:
            self._unanswered.pop(answer.number, None)

    def _fulfil(
        self,
        future: Future[Any],
        expected: Any,
        answer: JournalAnswer | Fetched | Located,
        bodies: Sequence[Any],
    ) -> None:
        """Settle a future. `expected` is the type of the answer; for a fetch, its request."""
        if isinstance(answer, Fetched):
            self._take_frames(future, expected, answer, bodies)
        elif isinstance(answer, Located):
            self._read_files(future, expected, answer)
        elif answer.refusal:
            refusal = answer.refusal
            future.set_exception(from_wire(refusal.kind, refusal.what, refusal.do))
        else:
            future.set_result(decode_msgpack(answer.value, expected))

    def _take_frames(
        self, future: Future[Any], fetch: FetchRequest, answer: Fetched, bodies: Sequence[Any]
    ) -> None:
        """Decode frames; if this side forgot a table that the owner sent, fetch anew."""
        tables: list[HintTable] = []
        for position, rows in zip(answer.positions, answer.frames.hints, strict=True):
            if (table := self._tables.get(position)) is None:
                if not rows:
                    self._ask_again(future, fetch, anew=True)
                    return
                table = np.frombuffer(rows, ACK_ROW)
                if table.nbytes > WIDE_BYTES:
                    self._tables.put(position, table, table.nbytes)
            tables.append(table)
        future.set_result(list(decode_frames(fetch.journal, answer.frames, bodies, tables)))

    def _read_files(self, future: Future[Any], fetch: FetchRequest, found: Located) -> None:
        """Read frames from the log's files; if they moved or cannot be read here, fetch bytes."""
        if found.directory != self._here and not is_here(found.directory):
            self._kernel = ""
            self._ask_again(future, fetch, anew=False)
            return
        self._here = found.directory
        if (frames := _stored_frames(fetch.journal, found, self._tables)) is not None:
            future.set_result(frames)
            return
        self._ask_again(future, fetch, anew=False)

    def _ask_again(self, future: Future[Any], fetch: FetchRequest, *, anew: bool) -> None:
        with self._lock:
            number = next(self._numbers)
            self._unanswered[number] = future, fetch
        again = msgspec.structs.replace(fetch, kernel="", anew=anew)
        self._channel.send(Ask(number, again))


class RemoteWatch:
    def __init__(self, stream: Stream[messages.Reply]) -> None:
        self._stream = stream
        self._begun = False
        self._closed = False

    def next(self, timeout_s: float) -> Changes:
        try:
            # The owner lists all journals at once, however little time the caller has.
            message = self._stream.receive(timeout_s if self._begun else None)
        except TimeoutError:
            return Changes([], [], {})
        self._begun = True
        if self._closed:
            raise UsageError("the watch is closed", do="open another")
        if message is None:
            raise PeerLostError("the owner of the workspace closed it", do="watch again")
        changed = message.control
        assert isinstance(changed, Changed)
        return Changes(changed.created, changed.deleted, changed.heads)

    def close(self) -> None:
        self._closed = True
        self._stream.close()


def _stored_frames(
    journal: JournalId, found: Located, tables: HintTableCache[HintTable]
) -> list[Frame] | None:
    """Read the frames. Returns None if a file is gone or unreadable: the owner knows more."""
    try:
        files = LogFiles(found.directory.path)
        return stored_frames(journal, decode_locations(found.frames), tables, files.read)
    except (NotFoundError, StorageError, DataError):
        return None

"""Opens Queues: the first Slice of a Session that comes makes its Queue, and the others join it."""

from __future__ import annotations

import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import msgspec

from headrace.errors import REPORT, HeadraceError, PeerLostError, ProtocolError
from headrace.settings import LogSettings
from headrace.shuffle import messages
from headrace.shuffle.checkpoint import Checkpoint
from headrace.shuffle.queue.actor import QueueActor
from headrace.transport import Channel, ChannelEnd, Conversation, Message, RequestService


class Queues:
    """The Queues of one member, by Session."""

    def __init__(self, root: Path, settings: LogSettings) -> None:
        self._root = root
        self._settings = settings
        self._lock = threading.Lock()
        self._queues: dict[str, QueueActor] = {}
        self._ended: dict[str, str] = {}
        """Why each Session ended that had a Queue here; empty if nobody gave a reason."""

    def open(self, opening: messages.OpenQueue) -> QueueActor:
        """Return the Queue of a Session, which the first call makes."""
        with self._lock:
            self._check_has_not_ended(opening.session)
            if (found := self._queues.get(opening.session)) is None:
                root = self._root / opening.session
                found = QueueActor(opening.session, root, opening, self._settings)
                self._queues[opening.session] = found
            if found.member != opening.member:
                raise ProtocolError(
                    f"the Queue of member {found.member} was opened as that of {opening.member}",
                    do="name each member of a Session once",
                )
            return found

    def of(self, session: str) -> QueueActor:
        """Return the Queue of a Session; raise PeerLostError if it has none here."""
        with self._lock:
            self._check_has_not_ended(session)
            if (found := self._queues.get(session)) is None:
                raise PeerLostError("the Session has no Queue here", do="open another Session")
            return found

    def _check_has_not_ended(self, session: str) -> None:
        if (why := self._ended.get(session)) is not None:
            what = f"the Session has ended: {why}" if why else "the Session has ended"
            raise PeerLostError(what, do="open another Session")

    def end(self, session: str, why: str = "") -> None:
        """Discard a Session's Queue. The first reason that is given counts."""
        with self._lock:
            self._ended[session] = self._ended.get(session) or why
            found = self._queues.pop(session, None)
        if found:
            found.close()

    def close(self) -> None:
        for session in list(self._queues):
            self.end(session)


class QueueService:
    """Serves the Slices that send to the Queues of this member."""

    requests: msgspec.msgpack.Decoder[messages.ToQueue] = msgspec.msgpack.Decoder(messages.ToQueue)

    def __init__(self, queues: Queues) -> None:
        self._queues = queues

    def stream(self, request: Any, channel: Channel[Any]) -> Any:
        raise ProtocolError("a Queue does not answer a stream", do="open a conversation with it")

    def converse(self, channel: ChannelEnd[Any]) -> None:
        first = channel.receive()
        if first is None:
            return
        opening = first.control
        if not isinstance(opening, messages.OpenQueue):
            raise ProtocolError(
                f"a Queue got {type(opening).__name__} before it was opened",
                do=REPORT,
            )
        why = ""
        try:
            self._queues.open(opening).serve(opening.slice, channel)
        except HeadraceError as error:
            why = f"the Slice of member {opening.slice}: {error.what}"
            raise
        finally:
            # A Session ends with its first Slice that leaves. Others may not even have come yet.
            self._queues.end(opening.session, why)


class ConsumerService(RequestService):
    """Tells Queues which checkpoints there are, and which nobody will read again."""

    requests: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(
        tuple[int, messages.FromConsumer]
    )

    def __init__(self, queues: Queues) -> None:
        super().__init__()
        self._queues = queues

    def carry_out(self, call: Any, bodies: tuple[Any, ...], caller: Conversation) -> None:
        queue = self._queues.of(call.session)
        if isinstance(call, messages.Advance):
            queue.advance(call.number, Checkpoint.decode(call.checkpoint))
        else:
            queue.release(call.number)

    def end(self, caller: Conversation) -> None:
        """Keep what the caller was shown: others may read it until the Session ends."""


class ReaderService:
    """Serves the documents of checkpoints."""

    requests: msgspec.msgpack.Decoder[messages.ToReader] = msgspec.msgpack.Decoder(
        messages.ToReader
    )

    def __init__(self, queues: Queues) -> None:
        self._queues = queues

    def converse(self, channel: Channel[Any]) -> None:
        raise ProtocolError("a Queue holds no conversation with readers", do="open a stream")

    def stream(self, request: Any, channel: Channel[Any]) -> Generator[Message[Any], None, None]:
        queue = self._queues.of(request.session)
        if request.checkpoint:
            queue.advance(request.number, Checkpoint.decode(request.checkpoint))
        yield from queue.read(request)

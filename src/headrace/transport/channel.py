"""One conversation: messages travel in order both ways until both sides close or both fail.

How it ends:
- The caller closes: the service receives the rest, then None, and may still answer. The service
  closes by returning: the caller receives the rest, then None, and can send no more.
- Either side fails: the other one raises the same error.
- The stream ends without a Close, or the peer is silent for too long: the peer is lost. Flight
  reports a clean end, a cancelled call and a killed client alike, and reports no stopped client.

Who writes and who reads: two threads on one Flight writer abort the process, and nothing can
interrupt a write to a stopped peer. So one thread per conversation writes and one reads. The user's
threads wait only for mailboxes, and closing a mailbox frees them.

Back-pressure: `send` waits while the peer does not receive. Two sides that only send wait for each
other, so a user that sends much in both directions needs credits of its own. A side that does not
receive does not read either, so it cannot notice that its peer is silent.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, Self

import msgspec
import pyarrow as pa

from headrace.errors import (
    HeadraceError,
    PeerLostError,
    TransportError,
    UsageError,
    from_wire,
    to_wire,
)
from headrace.settings import KIB, MIB, ServiceSettings
from headrace.transport.flight_errors import FLIGHT_ERRORS, translate
from headrace.transport.mailbox import Mailbox
from headrace.transport.message import (
    ENVELOPE,
    Body,
    C,
    Close,
    EncodedMessage,
    Failure,
    Heartbeat,
    Message,
    MessageBatch,
    Packet,
    decode_packet,
    encode_message,
    encode_packet,
    pack,
    unpack,
)

logger = logging.getLogger(__name__)

OUTBOX_BYTES_MAX = 8 * MIB
INBOX_BYTES_MAX = 8 * MIB
GROUP_BYTES_MAX = 64 * KIB
"""Messages that wait for the writer travel together up to this size; that copies them."""


class ChannelEnd(Protocol[C]):
    """What every side of a conversation can do, with another process or within this one."""

    @property
    def peer(self) -> str:
        """Who is on the other side."""

    def send(self, control: object, bodies: Iterable[Body] = ()) -> None:
        """Send a message. Bodies must not change afterwards."""

    def receive(self, timeout_s: float | None = None) -> Message[C] | None:
        """Return the next message, or None if the other side has sent everything."""

    def leave(self) -> None:
        """End this side without waiting: it sends nothing more."""

    def fail(self, error: BaseException) -> None:
        """End both sides with an error."""


class Channel(Generic[C]):
    """One side of a conversation. Any thread may send, receive and close."""

    def __init__(
        self,
        reader: Any,
        writer: Any,
        decoder: msgspec.msgpack.Decoder[C],
        *,
        peer: str,
        calling: bool,
        cut_off: Callable[[], None],
        settings: ServiceSettings,
    ) -> None:
        """`calling` is True for the side that opened the conversation.

        `cut_off` frees a blocked read or write.
        """
        self.peer = peer
        self.heard_at_s = time.monotonic()
        self._reader = reader
        self._writer = writer
        self._decoder = decoder
        self._calling = calling
        self._cut_off = cut_off
        self._settings = settings
        self._outbox: Mailbox[EncodedMessage] = Mailbox(OUTBOX_BYTES_MAX)
        self._inbox: Mailbox[Message[C]] = Mailbox(INBOX_BYTES_MAX)
        self._lock = threading.Lock()
        self._error: HeadraceError | None = None
        self._peer_closed = False
        self._left = False
        self._last_word: Close | Failure | None = None
        self._at_end: list[Callable[[], None]] = []
        self._accepted = False
        self._decided = threading.Event()
        self._read_done = threading.Event()

    # What its user does

    def send(self, control: object, bodies: Iterable[Body] = ()) -> None:
        """Hand a message to the writer; wait while the peer is far behind.

        The channel does not copy bodies, so they must not change afterwards. Only an answer tells
        that the peer has received the message.
        """
        sent = encode_message(control, bodies)
        if not self._outbox.put(sent, sent.size):
            raise self._refusal()

    def receive(self, timeout_s: float | None = None) -> Message[C] | None:
        """Return the next message, or None if the peer has closed and everything is received.

        Raises the peer's error if it failed, PeerLostError if it is gone, and TimeoutError if
        nothing arrived in time. Messages that arrived before an error come first.
        """
        if taken := self._inbox.take(timeout_s):
            return taken[0]
        self._raise_error()
        return None

    @property
    def ended(self) -> bool:
        """True if nothing more will arrive: the peer has ended or is lost, or this side left."""
        return self._peer_closed or self._error is not None or self._last_word is not None

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, from any thread, when the conversation ends; at once if it has."""
        with self._lock:
            if not self.ended:
                self._at_end.append(callback)
                return
        callback()

    def leave(self) -> None:
        """Send what is queued, then Close, without waiting. This side receives nothing more."""
        self._left = True
        self._end(last_word=Close(), drop_inbox=True)

    def close(self) -> None:
        """Leave, and wait until the peer has received everything and has finished too.

        Raises the peer's error if it failed or is lost. A peer that lives but does not finish
        within `silence_s` counts as lost.
        """
        self.leave()
        if not self._read_done.wait(self._settings.silence_s):
            self._lose(PeerLostError(f"{self.peer} did not finish the conversation"))
            if self._calling:
                self._cut_off()
        self._raise_error()

    def fail(self, error: BaseException) -> None:
        """End the conversation with `error` on both sides, without waiting."""
        wire = to_wire(error)
        self._end(error=from_wire(*wire), last_word=Failure(*wire), drop_inbox=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None:
            self.close()
        else:
            self.fail(error)

    # What its host does

    def wait_until_accepted(self) -> None:
        """Wait for the first packet of the peer. Raises if none ever comes."""
        self._decided.wait()
        if not self._accepted:
            self._raise_error()

    def run(self) -> None:
        """Read and write until the stream ends; nothing touches the stream afterwards."""
        writing = threading.Thread(target=self._write, name=f"write {self.peer}", daemon=True)
        writing.start()
        try:
            while self._read_next():
                pass
        except StopIteration:
            if not self._peer_closed:
                self._lose(
                    PeerLostError(
                        f"{self.peer} left without closing", do="see the log of that process"
                    )
                )
        except FLIGHT_ERRORS as error:
            self._lose(translate(error, self.peer))
        except Exception as error:
            logger.exception("while reading from %s", self.peer)
            self.fail(error)
        finally:
            self.heard_at_s = math.inf
            self._read_done.set()
            self._decided.set()
            writing.join()
            # Flight keeps the connection while these exist.
            self._reader = self._writer = None
            self._cut_off = _nothing

    def break_off(self, error: HeadraceError) -> None:
        """End the conversation without a last word: the peer sees this side as lost."""
        self._lose(error)
        self._cut_off()

    def lose_silent(self) -> None:
        """End the conversation because the watchdog found the peer silent."""
        self.break_off(
            PeerLostError(
                f"{self.peer} was silent for {self._settings.silence_s} s",
                do="see whether it is stopped, overloaded or cut off",
            )
        )

    # The reading thread

    def _read_next(self) -> bool:
        """Read one packet. Returns False if it was the caller's last word, which ends the call.

        A Flight client could end the call by closing its writer. But a read that fails closes it
        too, inside Flight, and closing it twice at the same time aborts the process. So the server
        ends every call by returning, and the caller reads until then.
        """
        chunk = self._reader.read_chunk()
        self.heard_at_s = time.monotonic()
        self._accepted = True
        self._decided.set()
        try:
            frame = decode_packet(chunk.app_metadata)
            self._take_in(frame, chunk.data)
        except (msgspec.MsgspecError, pa.ArrowInvalid) as error:
            self.fail(
                TransportError(
                    f"{self.peer} sent a malformed message: {error}",
                    do="run the same version of Headrace on both sides",
                )
            )
            return False
        return self._calling or not isinstance(frame, Close | Failure)

    def _take_in(self, frame: Packet, batch: Any) -> None:
        if isinstance(frame, MessageBatch):
            messages = unpack(frame, batch, self._decoder)
            # While the inbox is full nobody reads, so the peer's silence does not count.
            self.heard_at_s = math.inf
            for message, size in messages:
                self._inbox.put(message, size)
            self.heard_at_s = time.monotonic()
        elif isinstance(frame, Close):
            # The peer sends no more heartbeats.
            self.heard_at_s = math.inf
            self._end(peer_closed=True)
        elif isinstance(frame, Failure):
            error = from_wire(frame.kind, frame.what, frame.do)
            self._end(error=error, last_word=Close(), drop_outbox=True)

    # The writing thread

    def _write(self) -> None:
        try:
            self._writer.begin(ENVELOPE)
            self._write_packet(Heartbeat())
            while self._write_next():
                pass
            if self._last_word is not None:
                self._write_packet(self._last_word)
        except FLIGHT_ERRORS as error:
            # The call is over. The reader learns why: it may still have a Failure to read.
            self._inbox.lift_limit()
            self._read_done.wait()
            self._lose(translate(error, self.peer))

    def _write_next(self) -> bool:
        try:
            messages = self._outbox.take(self._settings.heartbeat_s, GROUP_BYTES_MAX)
        except TimeoutError:
            self._write_packet(Heartbeat())
            return True
        if messages:
            # Those without bodies may follow any other: they make nobody copy its body.
            messages += self._outbox.take_while(_has_no_bodies, GROUP_BYTES_MAX)
            batch, metadata = pack(messages)
            if batch is None:
                self._writer.write_metadata(metadata)
            else:
                self._writer.write_with_metadata(batch, metadata)
        return bool(messages)

    def _write_packet(self, frame: Packet) -> None:
        self._writer.write_metadata(encode_packet(frame))

    # How it ends

    def _lose(self, error: HeadraceError) -> None:
        if not (self._calling and self._peer_closed):
            self._end(error=error, drop_outbox=True)

    def _end(
        self,
        *,
        error: HeadraceError | None = None,
        peer_closed: bool = False,
        last_word: Close | Failure | None = None,
        drop_inbox: bool = False,
        drop_outbox: bool = False,
    ) -> None:
        """End the conversation in any way. The first error and the first last word stay."""
        over_for_caller = peer_closed and self._calling
        with self._lock:
            self._error = self._error or error
            self._peer_closed = self._peer_closed or peer_closed
            self._last_word = self._last_word or last_word or (Close() if over_for_caller else None)
            callbacks, self._at_end = self._at_end, []
        self._inbox.close(discard=drop_inbox)
        if error is not None or last_word is not None or over_for_caller:
            self._outbox.close(discard=drop_outbox or over_for_caller)
        for callback in callbacks:
            callback()

    def _raise_error(self) -> None:
        if self._error is not None:
            # Raise a copy: every thread that raises the error adds its own traceback.
            raise from_wire(*to_wire(self._error))

    def _refusal(self) -> HeadraceError:
        if self._error is not None:
            return from_wire(*to_wire(self._error))
        if self._peer_closed and not self._left:
            return PeerLostError(f"{self.peer} closed the conversation", do="open another one")
        return UsageError(f"the conversation with {self.peer} is closed", do="open another one")


def _has_no_bodies(message: EncodedMessage) -> bool:
    return not message.bodies


def _nothing() -> None:
    """Replaces `cut_off` when the stream has ended."""

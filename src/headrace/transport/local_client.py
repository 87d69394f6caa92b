"""The client of a service in the same process: messages pass between threads as they are.

Its conversations end as those of a `Client` do. They need no encoding, no connection and no
watchdog: both sides live and stop together. Messages may be of any size.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Generic

import msgspec
import pyarrow as pa

from headrace.errors import HeadraceError, PeerLostError, UsageError, from_wire, to_wire
from headrace.transport.channel import INBOX_BYTES_MAX, ChannelEnd
from headrace.transport.mailbox import Mailbox
from headrace.transport.message import MESSAGE_OVERHEAD_BYTES, Body, C, Message
from headrace.transport.server import serve

_WAIT_S = 2.0
"""How long `wait` gives a service that was told that its caller is gone."""


class LocalChannel(Generic[C]):
    """One side of a conversation. Any thread may send, receive and leave."""

    other: LocalChannel[Any]

    def __init__(self, peer: str, ending: threading.Lock, *, calling: bool) -> None:
        """Both sides share `ending`, so that the first error is the same on both."""
        self.peer = peer
        self._ending = ending
        self._calling = calling
        self._inbox: Mailbox[Message[C]] = Mailbox(INBOX_BYTES_MAX)
        self._error: HeadraceError | None = None
        self._left = False

    def send(self, control: object, bodies: Iterable[Body] = ()) -> None:
        """Hand a message to the other side, as it is; wait while that side is far behind."""
        buffers = tuple(b if isinstance(b, pa.Buffer) else pa.py_buffer(b) for b in bodies)
        size = MESSAGE_OVERHEAD_BYTES + sum(b.size for b in buffers)
        if not self.other._inbox.put(Message(control, buffers), size):
            self._refuse()

    def receive(self, timeout_s: float | None = None) -> Message[C] | None:
        """Return the next message as `Channel.receive` does; None once the other side has left."""
        if taken := self._inbox.take(timeout_s):
            return taken[0]
        self._raise_error()
        return None

    def leave(self) -> None:
        """Send nothing more, and receive nothing more."""
        self._left = True
        self._inbox.close(discard=True)
        self.other._inbox.close()

    def fail(self, error: BaseException) -> None:
        """End the conversation with `error` on both sides. The first error stays."""
        wire = to_wire(error)
        with self._ending:
            for side in (self, self.other):
                side._error = side._error or from_wire(*wire)
        self.leave()

    def _refuse(self) -> None:
        """Raise why a message went nowhere; but a service may answer a caller that has left."""
        self._raise_error()
        if self._left:
            raise UsageError(f"the conversation with {self.peer} is closed", do="open another one")
        if self._calling:
            raise PeerLostError(f"{self.peer} closed the conversation", do="open another one")

    def _raise_error(self) -> None:
        if self._error is not None:
            # Raise a copy: every thread that raises the error adds its own traceback.
            raise from_wire(*to_wire(self._error))


class LocalClient:
    """Holds any number of conversations with one service of this process."""

    def __init__(self, address: str, converse: Callable[[ChannelEnd[Any]], None]) -> None:
        """`converse` is that of the service, which other processes find at `address`."""
        self.address = address
        self._serve = converse
        self._lock = threading.Lock()
        self._calls: dict[LocalChannel[Any], threading.Thread] = {}
        """The callers' sides, each with the thread that serves the other side."""
        self._closed = False

    def converse(self, kind: str, replies: msgspec.msgpack.Decoder[C]) -> LocalChannel[C]:
        """Open a conversation. Answers arrive as they were sent: nobody needs `replies`."""
        ending = threading.Lock()
        calling: LocalChannel[C] = LocalChannel(f"{kind} at {self.address}", ending, calling=True)
        serving: LocalChannel[Any] = LocalChannel(f"{kind} caller here", ending, calling=False)
        calling.other, serving.other = serving, calling
        thread = threading.Thread(
            target=self._run, args=(calling,), name=f"serve {serving.peer}", daemon=True
        )
        with self._lock:
            if self._closed:
                raise UsageError(
                    f"the client of {self.address} is closed", do="make another client"
                )
            thread.start()
            self._calls[calling] = thread
        return calling

    def _run(self, calling: LocalChannel[Any]) -> None:
        serving = calling.other
        try:
            serve(lambda: self._serve(serving), serving)
        finally:
            with self._lock:
                self._calls.pop(calling, None)

    def close(self) -> None:
        """Break off what still runs, and do not wait: see `wait`."""
        with self._lock:
            self._closed = True
            calls = list(self._calls)
        for channel in calls:
            channel.fail(PeerLostError(f"the client of {self.address} was closed"))

    def wait(self) -> None:
        """Wait for a moment until the service has left its conversations."""
        with self._lock:
            threads = list(self._calls.values())
        deadline = time.monotonic() + _WAIT_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

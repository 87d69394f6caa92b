"""Opens a Slice: it connects to every Queue, then answers its Session, then runs."""

from __future__ import annotations

import threading
from contextlib import ExitStack, suppress
from typing import Any

import msgspec

from headrace.errors import REPORT, HeadraceError, ProtocolError
from headrace.journal.location.workspace_connection import WorkspaceConnection
from headrace.journal.wire.failover import FailoverReads
from headrace.settings import ServiceSettings
from headrace.shuffle import messages
from headrace.shuffle.binding import Sources
from headrace.shuffle.member.member_connections import close_all, open_all, open_one
from headrace.shuffle.peer import Peer
from headrace.shuffle.queue.handler import Queues, QueueService
from headrace.shuffle.slice.actor import SliceActor
from headrace.transport import Channel, Client, LocalClient

_from_queue: msgspec.msgpack.Decoder[messages.FromQueue] = msgspec.msgpack.Decoder(
    messages.FromQueue
)


class SliceService:
    """Serves the Sessions that make this process one of their members."""

    requests: msgspec.msgpack.Decoder[messages.ToSlice] = msgspec.msgpack.Decoder(messages.ToSlice)

    def __init__(self, settings: ServiceSettings, queues: Queues) -> None:
        self._settings = settings
        self._queues = queues

    def stream(self, request: Any, channel: Channel[Any]) -> Any:
        raise ProtocolError("a Slice does not answer a stream", do="open a conversation with it")

    def converse(self, channel: Channel[Any]) -> None:
        first = channel.receive()
        if first is None:
            return
        opening = first.control
        if not isinstance(opening, messages.OpenSlice):
            raise ProtocolError(
                f"a Slice got {type(opening).__name__} before it was opened",
                do=REPORT,
            )
        with ExitStack() as stack:
            stack.callback(self._queues.end, opening.session)
            try:
                self._open(opening, channel, stack).run()
            except Exception as error:
                _tell(channel, error)
                if isinstance(error, HeadraceError):
                    # Tell the Queue before this Slice leaves it: it would take that for the cause.
                    self._queues.end(opening.session, error.what)
                raise

    def _open(
        self, opening: messages.OpenSlice, session: Channel[Any], stack: ExitStack
    ) -> SliceActor:
        connection = opening.workspace.open(WorkspaceConnection, self._settings)
        stack.callback(connection.close)
        reads = FailoverReads(connection)
        stack.callback(reads.close)
        queues = self._connect(opening, session, stack)
        actor = SliceActor(
            Sources(opening.sources),
            [member.range for member in opening.members],
            reads,
            session,
            queues,
            self._queues.of(opening.session).status,
            opening.settings,
        )
        session.send(messages.Opened(opening.session))
        return actor

    def _connect(
        self, opening: messages.OpenSlice, session: Channel[Any], stack: ExitStack
    ) -> list[Peer]:
        """Open a conversation with every Queue. The first that refuses ends the opening.

        The Session ends it too if it leaves meanwhile: another member may have refused it.
        """
        clients = [self._client(opening, member) for member in range(len(opening.members))]
        for client in clients:
            if isinstance(client, LocalClient):
                stack.callback(client.wait)
        for client in clients:
            stack.callback(client.close)
        connected = threading.Event()
        session.on_end(lambda: None if connected.is_set() else close_all(clients))
        queues = open_all(
            clients,
            lambda member, client: _open_queue(client, opening, member),
            who="the Queue of member",
            # So the Session hears which Queue was too slow before it gives up itself.
            timeout_s=opening.settings.open_s / 2,
        )
        connected.set()
        return queues

    def _client(self, opening: messages.OpenSlice, member: int) -> Client | LocalClient:
        """Return a client of a member's Queue: what goes to this member stays in this process."""
        address = opening.members[member].address
        if member == opening.member:
            return LocalClient(address, QueueService(self._queues).converse)
        return Client(address, self._settings)


def _tell(session: Channel[Any], error: Exception) -> None:
    """Tell the Session the cause, before Queues see that the Slice left and pass that on."""
    session.fail(error)
    with suppress(HeadraceError):
        session.close()


def _open_queue(client: Client | LocalClient, opening: messages.OpenSlice, member: int) -> Peer:
    request = messages.OpenQueue(
        opening.session,
        member,
        opening.member,
        len(opening.members),
        opening.sources,
        opening.settings,
    )
    peer = Peer(f"the Queue of member {member}", client, messages.QUEUE, _from_queue)
    return open_one(peer, request, messages.QueueOpened(opening.session))

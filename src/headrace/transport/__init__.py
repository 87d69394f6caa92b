"""The one transport: conversations and streams of typed messages over Arrow Flight.

Within a process, a `LocalClient` holds the same conversations without it.
"""

from headrace.transport.channel import Channel, ChannelEnd
from headrace.transport.client import Client, Stream
from headrace.transport.local_client import LocalClient
from headrace.transport.message import MESSAGE_BYTES_MAX, Message
from headrace.transport.requests import Conversation, RequestClient, RequestService
from headrace.transport.server import Server, Service

__all__ = [
    "MESSAGE_BYTES_MAX",
    "Channel",
    "ChannelEnd",
    "Client",
    "Conversation",
    "LocalClient",
    "Message",
    "RequestClient",
    "RequestService",
    "Server",
    "Service",
    "Stream",
]

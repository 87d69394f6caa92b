"""The one transport: conversations and streams of typed messages over Arrow Flight."""

from headrace.transport.channel import Channel
from headrace.transport.client import Client, Stream
from headrace.transport.message import MESSAGE_BYTES_MAX, Message
from headrace.transport.requests import Conversation, RequestClient, RequestService
from headrace.transport.server import Server, Service

__all__ = [
    "MESSAGE_BYTES_MAX",
    "Channel",
    "Client",
    "Conversation",
    "Message",
    "RequestClient",
    "RequestService",
    "Server",
    "Service",
    "Stream",
]

"""From an endpoint to a backend: what a worker in another process begins with."""

from __future__ import annotations

from functools import partial

import msgspec

from headrace.errors import UsageError
from headrace.journal.workspace import Workspace
from headrace.queues.contract import QueueBackend, QueueEndpoint
from headrace.queues.local_backend import LocalBackend
from headrace.queues.remote_backend import RemoteBackend
from headrace.settings import ServiceSettings

__all__ = ["QueueEndpoint", "connect"]


def connect(endpoint: QueueEndpoint, service: ServiceSettings | None = None) -> QueueBackend:
    """Return a backend of the topics at an endpoint. Its `start` connects, its `stop` leaves.

    `service` are the settings of this process, such as the root of TLS certificates.
    """
    service = service or ServiceSettings()
    if endpoint.workspace is not None:
        return LocalBackend(partial(endpoint.workspace.open, Workspace, service))
    if not endpoint.address:
        raise UsageError("the endpoint is empty", do="pass what `endpoint()` returned")
    token = endpoint.token or service.token
    return RemoteBackend(endpoint.address, msgspec.structs.replace(service, token=token))

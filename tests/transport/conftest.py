from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.transport import Client, Server
from tests.transport.echo_service import CALM, SWIFT, Echo


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
def server(echo: Echo) -> Iterator[Server]:
    with Server({"echo": echo}, CALM) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.address, CALM) as client:
        yield client


@pytest.fixture
def swift_server(echo: Echo) -> Iterator[Server]:
    with Server({"echo": echo}, SWIFT) as server:
        yield server

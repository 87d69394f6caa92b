"""Every backend passes the same suite."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import headrace as hr
from headrace.queues.local import LocalBackend
from headrace.queues.memory import MemoryBackend, MemoryTopics
from headrace.queues.messages import TOPICS
from headrace.queues.remote import RemoteBackend
from headrace.queues.service import TopicsService
from headrace.settings import ServiceSettings
from headrace.testing.queue_conformance import Opener, QueueConformance
from headrace.transport import Server


class TestMemory(QueueConformance):
    @pytest.fixture
    def opener(self) -> Iterator[Opener]:
        topics = MemoryTopics()
        yield lambda: MemoryBackend(topics)
        topics.validate()


class TestMemoryServed(QueueConformance):
    @pytest.fixture
    def opener(self) -> Iterator[Opener]:
        topics = MemoryTopics()
        service = TopicsService(topics)
        with Server({TOPICS: service}, ServiceSettings()) as server:
            yield lambda: RemoteBackend(server.address)
        topics.validate()
        service.close()


class TestLocal(QueueConformance):
    @pytest.fixture
    def opener(self, tmp_path: Path) -> Iterator[Opener]:
        with hr.open(tmp_path / "data") as workspace:
            yield lambda: LocalBackend(workspace)


class TestLocalThroughTheOwner(QueueConformance):
    """The owner of the workspace is another handle, so every call travels."""

    @pytest.fixture
    def opener(self, tmp_path: Path) -> Iterator[Opener]:
        with hr.open(tmp_path / "data") as owner, ExitStack() as opened:
            yield lambda: LocalBackend(opened.enter_context(hr.open(owner.place)))

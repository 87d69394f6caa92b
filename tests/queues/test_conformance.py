"""Every backend passes the same suite."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import headrace as hr
from headrace.queues.endpoint import QueueEndpoint, connect
from headrace.queues.local_backend import LocalBackend
from headrace.queues.memory_backend import MemoryBackend, MemoryTopics
from headrace.queues.topics_service import ServedTopics
from headrace.testing.crash import Child
from headrace.testing.queue_conformance import Opener, QueueConformance


class TestMemory(QueueConformance):
    @pytest.fixture
    def opener(self) -> Iterator[Opener]:
        topics = MemoryTopics()
        yield lambda: MemoryBackend(topics)
        topics.validate()


class TestMemoryServed(QueueConformance):
    @pytest.fixture
    def opener(self) -> Iterator[Opener]:
        with ServedTopics() as served:
            yield lambda: connect(served.endpoint)
            served.backend.held.validate()


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
            yield lambda: LocalBackend(opened.enter_context(hr.open(owner.location)))


@pytest.mark.long
class TestLocalByItsEndpoint(QueueConformance):
    """Another process owns the workspace, and each backend opens it for itself."""

    @pytest.fixture
    def opener(self, tmp_path: Path) -> Iterator[Opener]:
        setup = "import headrace as hr; workspace = hr.open(place)"
        with Child(setup, place=str(tmp_path / "data")) as owner:
            endpoint = QueueEndpoint(workspace=owner.run("workspace.reach()"))
            yield lambda: connect(endpoint)

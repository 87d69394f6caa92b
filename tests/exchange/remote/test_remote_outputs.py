"""Readers on other machines: outputs over Flight."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.errors import AccessError, DamagedOutputError, NotFoundError, UsageError
from headrace.exchange import (
    AttemptCleanup,
    MapOutputReader,
    MapTask,
    OutputEndpoint,
    OutputRegistry,
    RemoteOutputs,
    ServedOutputs,
)
from headrace.settings import ServiceSettings
from headrace.storage import Objects
from headrace.testing.crash import Child, eventually
from tests.certificate import make_certificate
from tests.exchange.outputs import SCHEMA, TASK, keys_of, stored, write


@pytest.fixture
def endpoint(local_objects: Objects) -> Iterator[OutputEndpoint]:
    with ServedOutputs(local_objects) as served:
        yield served.endpoint


@pytest.fixture
def remote(endpoint: OutputEndpoint) -> Iterator[RemoteOutputs]:
    with RemoteOutputs(endpoint) as remote:
        yield remote


@pytest.mark.parametrize("chunk_bytes", [7, 100, 1 << 30])
def test_a_remote_reader_gets_the_same_rows(
    local_objects: Objects, remote: RemoteOutputs, chunk_bytes: int
) -> None:
    write(local_objects, {0: range(50), 1: [7]})
    local = MapOutputReader(local_objects)
    for reduce_partition in range(3):
        table = remote.read_partition(TASK, reduce_partition, chunk_bytes=chunk_bytes)
        assert table == local.read_partition(TASK, reduce_partition)
        assert table.schema == SCHEMA
    assert remote.resolve(TASK) == local.resolve(TASK)


def test_attempt_zero_is_the_latest(local_objects: Objects, remote: RemoteOutputs) -> None:
    write(local_objects, {0: [1]})
    write(local_objects, {0: [2]}, replaces=1)
    assert keys_of(remote.read_partition(TASK, 0, attempt=0)) == [2]
    assert keys_of(remote.read_partition(TASK, 0, attempt=1)) == [1]
    error = "map output not registered for requested attempt: query 1, stage 2, map task 3, "
    with pytest.raises(NotFoundError, match=f"{error}attempt 3"):
        remote.read_partition(TASK, 0, attempt=3)
    with pytest.raises(UsageError, match="no reduce partition 9"):
        remote.read_partition(TASK, 9)
    with pytest.raises(UsageError, match="chunk_bytes must be at least 1"):
        remote.read_partition(TASK, 0, chunk_bytes=0)


def test_all_outputs_of_a_stage_are_listed(local_objects: Objects, remote: RemoteOutputs) -> None:
    for map_task in range(5):
        write(local_objects, {0: [1]}, MapTask(1, 2, map_task))
    assert remote.published(1, 2) == OutputRegistry(local_objects).published(1, 2)
    assert remote.published(1, 3) == {}


def test_damage_reaches_the_reader_by_name(  # proves G20
    local_objects: Objects, remote: RemoteOutputs
) -> None:
    write(local_objects, {0: range(50)})
    part = bytearray(local_objects.get(TASK.part(1, 0)))
    part[len(part) // 2] ^= 1
    local_objects.put(TASK.part(1, 0), part)
    for chunk_bytes in (7, 1 << 20):
        with pytest.raises(DamagedOutputError, match="checksum does not match") as damage:
            remote.read_partition(TASK, 0, chunk_bytes=chunk_bytes)
        error = damage.value
        assert (error.query_id, error.stage_id, error.map_task, error.attempt) == (1, 2, 3, 1)
        assert error.file == "shuffle/1/2/3/1/part-0.ipc"
    local_objects.delete(TASK.part(1, 0))
    with pytest.raises(DamagedOutputError, match=r"part-0\.ipc is missing") as damage:
        remote.read_partition(TASK, 0)
    assert damage.value.attempt == 1


def test_a_stage_is_held_for_a_remote_reader(  # proves G22
    local_objects: Objects, remote: RemoteOutputs
) -> None:
    write(local_objects, {0: [1]})
    write(local_objects, {0: [2]}, replaces=1)
    cleanup = AttemptCleanup(local_objects)
    with remote.hold(1, 2):
        assert cleanup.cleanup_expired_attempts(0) == 0
        assert keys_of(remote.read_partition(TASK, 0, attempt=1)) == [1]
    eventually(lambda: not stored(local_objects, "shuffle/1/pins"), 30, "the pin to end")
    assert cleanup.cleanup_expired_attempts(0) == 1


def test_a_wrong_token_gets_nothing(local_objects: Objects, endpoint: OutputEndpoint) -> None:
    # proves G28
    write(local_objects, {0: [1]})
    assert endpoint.address.startswith("grpc://127.0.0.1:")
    with RemoteOutputs(endpoint._replace(token="wrong")) as stranger:
        for ask in (lambda: stranger.published(1, 2), lambda: stranger.read_partition(TASK, 0)):
            with pytest.raises(AccessError, match="refused access"):
                ask()


def test_outputs_are_served_over_tls(tmp_path: Path, local_objects: Objects) -> None:
    write(local_objects, {0: [1]})
    certificate, key = make_certificate(tmp_path)
    settings = ServiceSettings(
        tls_certificate=str(certificate), tls_key=str(key), tls_root=str(certificate)
    )
    with (
        ServedOutputs(local_objects, settings) as served,
        RemoteOutputs(served.endpoint, settings) as remote,
    ):
        assert keys_of(remote.read_partition(TASK, 0)) == [1]


@pytest.mark.crash
def test_the_hold_of_a_killed_reader_ends(local_objects: Objects, endpoint: OutputEndpoint) -> None:
    with Child(
        "from headrace.exchange import RemoteOutputs\n"
        "remote = RemoteOutputs(endpoint)\n"
        "hold = remote.hold(1, 2)\n"
        "hold.__enter__()",
        endpoint=endpoint,
    ) as reader:
        reader.answer()
        assert len(stored(local_objects, "shuffle/1/pins")) == 1
        reader.kill()
        eventually(lambda: not stored(local_objects, "shuffle/1/pins"), 60, "the pin to end")

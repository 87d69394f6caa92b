"""Who is let in by members."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from headrace.errors import (
    AccessError,
    PeerLostError,
)
from headrace.journal.location.workspace_ref import WorkspaceRef
from headrace.settings import ServiceSettings
from headrace.shuffle import Member, messages
from headrace.transport import Client
from tests.shuffle.real_task import Task
from tests.transport.test_access import certify


# proves G28
@pytest.mark.parametrize("token", ["", "wrong"])
def test_without_the_token_nothing_is_served(tmp_path: Path, task: Task, token: str) -> None:
    with Member(tmp_path / "guarded", ServiceSettings(token="right")) as member:
        with pytest.raises(AccessError, match=r"shuffle-slice at .* refused access"):
            task.open("a", members=[member.address], service=ServiceSettings(token=token))
        for kind in (messages.SLICE, messages.QUEUE, messages.READER):
            with (
                Client(member.address, ServiceSettings(token=token)) as client,
                pytest.raises(AccessError),
            ):
                client.converse(kind, msgspec.msgpack.Decoder())


# proves G28
def test_members_with_a_token_serve_those_who_have_it(tmp_path: Path, task: Task) -> None:
    service = ServiceSettings(token="right")
    task.append(0, 10)
    with Member(tmp_path / "m", service) as one, Member(tmp_path / "m", service) as other:
        task.open("a", members=[one.address, other.address], service=service)
        assert sum(len(shown.documents) for shown in task.take(10)) == 10
        task.leave()


# proves G28
def test_members_that_speak_tls_speak_nothing_else(tmp_path: Path, task: Task) -> None:
    (tmp_path / "own").mkdir()
    own = certify(tmp_path / "own")
    task.append(0, 10)
    with Member(tmp_path / "m", own) as one, Member(tmp_path / "m", own) as other:
        addresses = [one.address, other.address]
        assert addresses[0].startswith("grpc+tls://")
        with pytest.raises(AccessError, match="the TLS handshake with shuffle-slice"):
            task.open("a", members=addresses, service=ServiceSettings(token=own.token))
        plain = [address.replace("grpc+tls", "grpc") for address in addresses]
        with pytest.raises(PeerLostError):
            task.open("a", members=plain, service=ServiceSettings(token=own.token))
        task.open("a", members=addresses, service=own)
        assert sum(len(shown.documents) for shown in task.take(10)) == 10
        task.leave()


# proves G28
def test_a_member_listens_on_loopback(task: Task) -> None:
    assert all(address.startswith("grpc://127.0.0.1:") for address in task.addresses)


# proves G28
def test_a_member_that_does_not_see_the_directory_reads_through_the_owner(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    task.append(0, 10)
    reach = task.workspace.reach()
    assert reach.directory
    there = reach.directory._replace(kernel="of another machine")
    monkeypatch.setattr(
        task.workspace, "reach", lambda: WorkspaceRef(there, reach.address, reach.token)
    )
    task.open("a")
    assert sum(len(shown.documents) for shown in task.take(10)) == 10
    monkeypatch.setattr(
        task.workspace, "reach", lambda: WorkspaceRef(there, reach.address, "wrong")
    )
    with pytest.raises(AccessError, match=r"member \d: journals at .* refused access"):
        task.open("a")

"""`headrace read` through a shuffle, and `headrace shuffle`."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

import headrace as hr
from headrace.errors import UsageError
from headrace.shuffle.member.local_members import LocalMembers
from headrace.shuffle.session_registry import running_sessions
from headrace.testing.crash import Child
from tests.certificate import make_certificate
from tests.cli.conftest import Ok, Run, rows
from tests.cli.headrace_process import PATIENCE_S, Running

WORKSPACE = Path("headrace-data")


def sorted_lines(ndjson: str) -> list[str]:
    return sorted(ndjson.splitlines())


@pytest.mark.long
@pytest.mark.parametrize("shards", ["1", "3"])
def test_sharded_reading_prints_what_plain_reading_does(ok: Ok, bank: None, shards: str) -> None:
    ok("publish", "bank/credits", input='{"account":"dee","cents":1}\n' * 50)
    for collection in ("bank/debits", "bank/credits"):
        plain = ok("read", collection)
        assert sorted_lines(ok("read", collection, "--shards", shards)) == sorted_lines(plain)
        assert len(json.loads(ok("read", collection, "--shards", shards, "--json"))) == len(
            plain.splitlines()
        )
    assert not list(WORKSPACE.glob("sessions/*"))


def test_several_collections_are_read_as_of_one_moment(ok: Ok, bank: None) -> None:
    found = rows(ok("read", "bank/debits", "bank/credits", "--meta"))
    assert sum(row["cents"] for row in found) == 0
    by_collection = Counter(row["_collection"] for row in found)
    assert by_collection == {"bank/debits": 2, "bank/credits": 1}
    assert len({row["_clock"] for row in found}) == 3
    assert {row["_shard"] for row in found} == {0}


@pytest.mark.long
def test_options_of_plain_reading_hold_for_a_sharded_one(run: Run, ok: Ok, bank: None) -> None:
    assert [r["account"] for r in rows(ok("read", "bank/debits", "--shards", "2", "--where",
                                          "region=us"))] == ["bob"]  # fmt: skip
    assert len(rows(ok("read", "bank/debits", "--shards", "2", "--limit", "1"))) == 1
    table = ok("read", "bank/debits", "--shards", "2", "--format", "table").splitlines()
    assert table[0].split() == ["account", "cents", "region"]
    assert len(table) == 3
    assert ok("read", "bank/credits", "bank/debits", "--limit", "0") == ""
    for refused in (
        ("read", "bank/debits", "--shards", "2", "--from-offset", "bank/debits/region=eu/0000=0"),
        ("read", "bank/debits", "bank/credits", "--format", "table"),
        ("read", "bank/debits", "--member", "grpc://127.0.0.1:1", "--shards", "2"),
    ):
        result = run(*refused)
        assert result.exit_code == 1, refused
        assert result.stderr.startswith("error: ")
        assert result.stderr.count("\n") == 1


def test_an_empty_collection_is_read_to_its_end(ok: Ok) -> None:
    ok("collections", "create", "empty", "a string")
    assert ok("read", "empty", "--shards", "2", "--json") == "[]\n"


def of_accounts(ws: hr.Workspace, members: LocalMembers, **options: Any) -> hr.Shuffle:
    given = {"service": members.service, **options}
    return hr.Shuffle(ws, [hr.Binding(collection="accounts")], members.addresses, **given)


def test_what_is_committed_later_is_not_part_of_the_cut(here: Path) -> None:
    # proves G6
    with hr.open(here / "ws") as ws, LocalMembers(2) as members:
        accounts = ws.collection("accounts", "name string", key="name", journals=3)
        ws.append(accounts, [{"name": f"early {at}"} for at in range(10)])
        with ws.publisher("open") as open_one:
            open_one.append(accounts, [{"name": "open"}] * 5)
            cut = ws.journals()
            ws.append(accounts, [{"name": "late"}])
            with of_accounts(ws, members, cut=cut) as shuffle:
                found = [
                    name
                    for checkpoint in shuffle.drain()
                    for member in range(shuffle.members)
                    for _, batch in shuffle.read(member, checkpoint)
                    for name in batch["name"].to_pylist()
                ]
                assert list(shuffle.drain()) == []
    assert sorted(found) == [f"early {at}" for at in range(10)]


def test_only_a_cut_has_an_end(here: Path) -> None:
    with hr.open(here / "ws") as ws, LocalMembers(1) as members:
        ws.collection("accounts", "name string")
        shuffle = of_accounts(ws, members)
        with shuffle, pytest.raises(UsageError, match="a Shuffle without a cut never ends"):
            next(shuffle.drain())


@pytest.mark.long
def test_following_shows_whole_transactions_as_they_commit(ok: Ok, bank: None) -> None:
    # proves G9
    with Running("read", "bank/debits", "bank/credits", "--shards", "2", "--follow") as following:
        assert sum(json.loads(following.line())["cents"] for _ in range(3)) == 0
        ok("publish", "bank/debits=debits.ndjson", "bank/credits=credits.ndjson")
        assert sum(json.loads(following.line())["cents"] for _ in range(3)) == 0
        assert following.end(signal.SIGINT) == (0, "", "")
    assert not list(WORKSPACE.glob("sessions/*"))


@pytest.mark.crash
def test_the_status_shows_what_runs_and_forgets_what_was_killed(
    ok: Ok, bank: None, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(here))  # what is killed leaves its queue files
    assert json.loads(ok("shuffle", "status", "--json")) == []
    assert ok("shuffle", "status") == "no Session runs\n"
    with Running("read", "bank/debits", "bank/credits", "--shards", "2", "--follow") as following:
        for _ in range(3):
            following.line()
        [session] = json.loads(ok("shuffle", "status", "--json"))
        assert session["process"] == following.process.pid
        assert session["bindings"] == ["bank/debits", "bank/credits"]
        assert session["reads"] == 4
        assert session["behind_bytes"] == 0
        assert [member["member"] for member in session["members"]] == [0, 1]
        assert sum(sum(member["reads"].values()) for member in session["members"]) == 4
        assert (session["lagging"], session["reasons"], session["failure"]) == ([], [], None)
        [file] = WORKSPACE.glob("sessions/*")
        assert file.stat().st_mode & 0o777 == 0o600
        shown = ok("shuffle", "status")
        assert f"session   {session['session']}" in shown
        assert "member  address" in shown
        following.end(signal.SIGKILL)
    assert file.exists()
    assert json.loads(ok("shuffle", "status", "--json")) == []
    assert not file.exists()


@pytest.mark.crash
def test_a_session_that_lives_and_does_not_answer_is_shown_and_not_forgotten(
    ok: Ok, bank: None
) -> None:
    code = (
        "import headrace as hr\n"
        "from headrace.shuffle.member.local_members import LocalMembers\n"
        "ws, members = hr.open(location), LocalMembers(1)\n"
        "bindings = [hr.Binding(collection='bank/debits')]\n"
        "shuffle = hr.Shuffle(ws, bindings, members.addresses, service=members.service)"
    )
    with Child(code, location=WORKSPACE.absolute()) as child:
        child.answer()
        [running] = json.loads(ok("shuffle", "status", "--json"))
        assert (running["process"], running["unreachable"]) == (child.pid, None)
        os.kill(child.pid, signal.SIGSTOP)
        try:
            [stopped] = json.loads(ok("shuffle", "status", "--json"))
            shown = ok("shuffle", "status").splitlines()
        finally:
            os.kill(child.pid, signal.SIGCONT)
        assert (stopped["session"], stopped["process"]) == (running["session"], child.pid)
        assert stopped["unreachable"].startswith("shuffle-status at ")
        assert shown[-1].startswith("does not answer  shuffle-status at ")
        [again] = json.loads(ok("shuffle", "status", "--json"))
        assert (again["session"], again["unreachable"]) == (running["session"], None)
        child.run("(shuffle.close(), members.close(), ws.close())")
        assert ok("shuffle", "status") == "no Session runs\n"


def test_the_status_names_what_holds_a_session_back(here: Path) -> None:
    settings = hr.ShuffleSettings(queue_soft_bytes=1, credit_bytes=1)
    with hr.open(here / "ws") as ws, LocalMembers(1) as members:
        accounts = ws.collection("accounts", "name string")
        ws.append(accounts, [{"name": "shown"}])
        with ws.publisher("long") as transaction:
            transaction.append(accounts, [{"name": "x" * 5_000_000}])
            with of_accounts(ws, members, settings=settings) as shuffle:
                assert shuffle.next_checkpoint(10)
                while "pinned" not in (status := shuffle.status()).members[0].waits:
                    shuffle.next_checkpoint(0.01)
                [session] = running_sessions(here / "ws")
                assert session.status
                assert session.status.members == status.members
                assert status.members[0].waits.startswith(
                    "the Queue is over its soft limit of 0.0 MiB, "
                )
                assert "in journal accounts/0000 of binding 'accounts'" in status.members[0].waits
                [waiting] = session.status.transactions
                assert (waiting.journal, waiting.waits_for) == ("accounts/0000", "its ACK")


@pytest.mark.crash
def test_the_status_of_a_failed_session_is_its_failure(here: Path, ok: Ok) -> None:
    with hr.open(here / "ws") as ws, LocalMembers(1, processes=True) as members:
        ws.collection("accounts", "name string")
        with of_accounts(ws, members) as shuffle:
            os.kill(members.processes[0], signal.SIGKILL)
            with pytest.raises(hr.HeadraceError):
                shuffle.next_checkpoint(30)
            [session] = json.loads(ok("shuffle", "status", "--json", "-w", "ws"))
            assert session["failure"].startswith("member 0: ")
            assert "failed" in ok("shuffle", "status", "-w", "ws")


@pytest.mark.long
def test_members_of_other_processes_are_used_by_address(run: Run, ok: Ok, bank: None) -> None:
    with Running("shuffle", "member", "--json") as first:
        said = json.loads(first.line())
        token = said["token"]
        with Running("shuffle", "member", "--token", token, "--dir", ".") as second:
            address = second.line().split()[1]
            assert second.line() == "a member until Ctrl-C\n"
            through = ("--member", said["address"], "--member", address)
            read = ("read", "bank/debits", *through, "--member-token", token)
            assert sorted_lines(ok(*read)) == sorted_lines(ok("read", "bank/debits"))
            refused = run("read", "bank/debits", *through, "--member-token", "wrong")
            assert refused.exit_code == 1
            assert "refused access" in refused.stderr
            assert second.end(signal.SIGTERM) == (0, "", "")
            assert not list(Path(".").glob("headrace-member-*"))
        assert first.end(signal.SIGINT) == (0, "", "")


@pytest.mark.long
def test_members_with_a_certificate_are_used_by_those_who_trust_it(
    run: Run, ok: Ok, here: Path, bank: None
) -> None:
    # proves G28
    make_certificate(here)
    tls = ("--tls-cert", "cert.pem", "--tls-key", "key.pem", "--token", "secret")
    with Running("shuffle", "member", *tls) as first, Running("shuffle", "member", *tls) as second:
        addresses = [each.line().split()[1] for each in (first, second)]
        assert all(each.startswith("grpc+tls://") for each in addresses)
        through = [word for each in addresses for word in ("--member", each)]
        read = ("read", "bank/debits", *through, "--member-token", "secret")
        assert sorted_lines(ok(*read, "--tls-root", "cert.pem")) == sorted_lines(
            ok("read", "bank/debits")
        )
        assert "the TLS handshake with" in run(*read).stderr
        for member in (first, second):
            assert member.end(signal.SIGTERM)[0] == 0


@pytest.mark.long
def test_a_workspace_at_an_address_is_read_through_members(ok: Ok, run: Run, bank: None) -> None:
    with Running("serve", "--json") as serving:
        said = json.loads(serving.line())
        there = ("--workspace", said["address"], "--token", said["token"])
        assert len(rows(ok("read", "bank/debits", "bank/credits", *there))) == 3
        refused = run("shuffle", "status", "--workspace", said["address"])
        assert refused.exit_code == 1
        assert "name the workspace directory" in refused.stderr


@pytest.mark.crash
def test_member_processes_end_with_the_process_that_started_them(here: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from headrace.shuffle.member.local_members import LocalMembers\n"
        "members = LocalMembers(2, Path('.'), processes=True)\n"
        "print(*members.processes, flush=True)\nsys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout
        members = [int(each) for each in parent.stdout.readline().split()]
        ends = [os.pidfd_open(member) for member in members]
        parent.kill()
    for end in ends:
        assert select.select([end], [], [], PATIENCE_S)[0], "it still runs"
        os.close(end)
    [left] = here.glob("headrace-members-*")
    assert list(left.iterdir()) == []


def test_members_listen_only_to_those_who_have_their_token(here: Path) -> None:
    # proves G28
    with hr.open(here / "ws") as ws, LocalMembers(1) as members:
        ws.collection("accounts", "name string")
        wrong = msgspec.structs.replace(members.service, token="wrong")
        with pytest.raises(hr.errors.AccessError):
            of_accounts(ws, members, service=wrong)
    assert not list((here / "ws").glob("sessions/*"))

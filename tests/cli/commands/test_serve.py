from __future__ import annotations

import json
import signal
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from headrace.testing.crash import Child
from tests.certificate import make_certificate
from tests.cli.conftest import Ok, Run, rows
from tests.cli.headrace_process import Running, headrace

pytestmark = pytest.mark.long


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_served_workspace_is_used_by_address_until_it_is_told_to_stop(
    run: Run, ok: Ok, bank: None, number: signal.Signals
) -> None:
    with Running("serve", "--json") as serving:
        said = json.loads(serving.line())
        assert said["process"] == serving.process.pid
        there = ("--workspace", said["address"], "--token", said["token"])
        assert len(rows(ok("read", "bank/debits", *there))) == 2
        ok("publish", "bank/credits=credits.ndjson", *there)
        assert len(rows(ok("read", "bank/credits"))) == 2  # in its directory, through the owner
        refused = run("read", "bank/debits", "--workspace", said["address"], "--token", "wrong")
        assert refused.exit_code == 1
        assert refused.stderr.startswith("error: ")
        assert serving.end(number) == (0, "", "")
    assert len(rows(ok("read", "bank/credits"))) == 2


def test_place_and_token_may_come_from_the_environment(
    ok: Ok, bank: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_TOKEN", "secret")
    with Running("serve") as serving:
        shown = [serving.line() for _ in range(3)]
        assert "secret" not in "".join(shown)
        monkeypatch.setenv("HEADRACE_WORKSPACE", shown[1].split()[1])
        assert len(rows(ok("read", "bank/debits"))) == 2


def test_serving_makes_the_workspace_and_tells_people_how_to_reach_it(here: Path) -> None:
    with Running("serve", "--workspace", "new") as serving:
        workspace, address, token, last = (serving.line() for _ in range(4))
        assert workspace.split() == ["workspace", str(here / "new")]
        assert address.startswith("address    grpc://127.0.0.1:")
        assert len(token.split()[1]) > 30
        assert last == "serving it until Ctrl-C\n"


def test_a_workspace_has_one_owner(run: Run, bank: None) -> None:
    with Running("serve", "--json") as serving:
        said = json.loads(serving.line())
        second = run("serve")
        assert second.exit_code == 1
        assert second.stderr == (
            f"error: ./headrace-data is owned by process {serving.process.pid} at"
            f" {said['address']}, which serves it;"
            " use it there, or end that process first, or stand by with --wait\n"
        )


OPEN = """
import headrace as hr
ws = hr.open("headrace-data")
"""


# proves G1
@pytest.mark.crash
def test_one_that_waits_takes_over_from_whoever_owns_the_workspace(ok: Ok, bank: None) -> None:
    with ExitStack() as stack:
        first = stack.enter_context(Running("serve", "--json"))
        address = json.loads(first.line())["address"]
        client = stack.enter_context(Child(OPEN))
        client.run('ws.append("bank/credits", [{"account": "dan", "cents": 1}])')
        first.end(signal.SIGKILL)
        assert client.run('ws.append("bank/credits", [{"account": "dan", "cents": 2}])')
        with Running("serve", "--wait", "--json") as standing_by:
            note = standing_by.note()
            assert note.startswith(f"note: waiting for process {client.pid} at grpc://127.0.0.1:")
            assert note.endswith(" to end, which owns ./headrace-data\n")
            assert address not in note
            ok("publish", "bank/credits=credits.ndjson")
            client.kill()
            said = json.loads(standing_by.line())
            assert said["process"] == standing_by.process.pid
            there = ("--workspace", said["address"], "--token", said["token"])
            assert len(rows(ok("read", "bank/credits", *there))) == 4
            assert standing_by.end(signal.SIGTERM) == (0, "", "")


def test_one_that_waits_serves_at_once_what_nobody_owns(here: Path) -> None:
    with Running("serve", "--wait", "--json", "--workspace", "new") as serving:
        assert json.loads(serving.line())["process"] == serving.process.pid
        assert serving.end(signal.SIGINT) == (0, "", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_that_waits_can_be_told_to_stop(bank: None, number: signal.Signals) -> None:
    with Running("serve", "--json") as first:
        first.line()
        with Running("serve", "--wait") as standing_by:
            standing_by.note()
            assert standing_by.end(number) == (0, "", "")
        assert first.process.poll() is None


# proves G27
def test_a_port_that_is_in_use_is_named(run: Run, bank: None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for command in (("serve",), ("shuffle", "member")):
            refused = run(*command, "--port", port)
            assert (refused.exit_code, refused.stderr) == (
                1,
                f"error: port {port} of 127.0.0.1 is in use;"
                " end the process that listens there, or choose another port\n",
            )


# proves G28
def test_listening_beyond_this_machine_without_tls_is_warned_of(here: Path) -> None:
    make_certificate(here)
    with Running("serve", "--json", "--host", "0.0.0.0") as serving:
        assert serving.note() == (
            "warning: listening on 0.0.0.0 without TLS: tokens and documents travel in the clear;"
            " give --tls-cert and --tls-key\n"
        )
        serving.line()
    tls = ("--tls-cert", "cert.pem", "--tls-key", "key.pem")
    with Running("serve", "--json", "--host", "0.0.0.0", *tls) as serving:
        serving.line()
        assert serving.end(signal.SIGTERM) == (0, "", "")


@pytest.mark.crash
def test_after_the_owner_was_killed_the_next_command_works(bank: None) -> None:
    # proves G1
    with Running("serve", "--json") as serving:
        serving.line()
        assert headrace("publish", "bank/credits=credits.ndjson").returncode == 0
        serving.end(signal.SIGKILL)
    found = headrace("read", "bank/credits")
    assert (found.returncode, found.stderr) == (0, b"")
    assert len(rows(found.stdout.decode())) == 2


def test_with_a_certificate_only_those_who_trust_it_are_served(
    run: Run, ok: Ok, here: Path, bank: None
) -> None:
    # proves G28
    make_certificate(here)
    with Running("serve", "--json", "--tls-cert", "cert.pem", "--tls-key", "key.pem") as serving:
        said = json.loads(serving.line())
        assert said["address"].startswith("grpc+tls://")
        there = ("--workspace", said["address"], "--token", said["token"])
        assert len(rows(ok("read", "bank/debits", *there, "--tls-root", "cert.pem"))) == 2
        assert run("read", "bank/debits", *there).exit_code == 1
        sharded = ("read", "bank/debits", "--shards", "2", *there)
        assert len(rows(ok(*sharded, "--tls-root", "cert.pem"))) == 2

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.certificate import make_certificate
from tests.cli.conftest import Ok, Run, rows
from tests.cli.processes import Running, headrace


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
            f" {said['address']}, which serves it; use it there, or end that process first\n"
        )


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

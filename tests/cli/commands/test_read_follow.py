from __future__ import annotations

import fcntl
import json
import re
import signal
import struct
import subprocess
import termios

import pytest

import headrace as hr
from headrace.testing.crash import eventually
from tests.cli.conftest import Ok, Run
from tests.cli.headrace_process import HEADRACE, PATIENCE_S, Running, headrace

pytestmark = pytest.mark.long

_PIPE_BYTES = 1 << 16
FOLLOW = ("read", "bank/credits", "--follow")


def account(line: str) -> str:
    return str(json.loads(line)["account"])


def test_following_prints_what_is_there_and_then_what_commits_until_ctrl_c(bank: None) -> None:
    with hr.open("headrace-data") as ws, Running(*FOLLOW) as following:
        assert account(following.line()) == "cay"
        for name in ("dan", "eve"):
            with ws.publisher() as tx:
                tx.append("bank/credits", [{"account": name}])
            assert account(following.line()) == name
        assert following.end(signal.SIGINT) == (0, "", "")


def test_who_is_stopped_while_nobody_reads_its_pipe_ends_all_the_same(bank: None) -> None:
    with hr.open("headrace-data") as ws:
        ws.append("bank/credits", [{"account": "x" * 1000}] * 5000)
        with subprocess.Popen([HEADRACE, *FOLLOW], stdout=subprocess.PIPE) as following:
            assert following.stdout
            read = following.stdout

            def is_full() -> bool:
                waiting = struct.unpack("i", fcntl.ioctl(read, termios.FIONREAD, b"\0" * 4))[0]
                return bool(waiting > _PIPE_BYTES // 2)

            eventually(is_full, PATIENCE_S, "a pipe that is full")
            following.send_signal(signal.SIGTERM)
            code = following.wait(PATIENCE_S)
    assert code == 0


def test_a_transaction_is_printed_once_it_commits_and_never_if_rolled_back(bank: None) -> None:
    # proves G2
    large = "x" * (5 << 20)  # more than the buffer: sent before the commit
    with hr.open("headrace-data") as ws:
        kept, given_up = ws.publisher().begin(), ws.publisher().begin()
        kept.append("bank/credits", [{"account": "kept" + large}])
        given_up.append("bank/credits", [{"account": "given up" + large}])
        with Running(*FOLLOW, "--meta") as following:
            assert account(following.line()) == "cay"
            ws.append("bank/credits", [{"account": "dan"}])
            assert account(following.line()) == "dan"
            given_up.rollback()
            kept.append("bank/credits", [{"account": "kept too"}])
            kept.commit()
            found = [json.loads(following.line()) for _ in range(2)]
            ws.append("bank/credits", [{"account": "last"}])
            assert account(following.line()) == "last"
    assert sorted(each["account"][:8] for each in found) == ["kept too", "kept" + "x" * 4]
    assert found[0]["_producer"] == found[1]["_producer"]


def test_following_sees_new_partitions_and_new_fields(bank: None) -> None:
    wider = "account string, cents long, region string, note string"
    with hr.open("headrace-data") as ws, Running("read", "bank/debits", "--follow") as following:
        assert {account(following.line()), account(following.line())} == {"ann", "bob"}
        ws.append("bank/debits", [{"account": "cay", "region": "mars"}])
        assert account(following.line()) == "cay"
        evolved = ws.collection("bank/debits", wider, key="account", partition_by="region")
        ws.append(evolved, [{"account": "dan", "region": "moon", "note": "new"}])
        assert json.loads(following.line())["note"] == "new"


@pytest.mark.crash
def test_following_goes_on_when_the_owner_is_killed(bank: None) -> None:
    with Running("serve", "--json") as owner:
        assert json.loads(owner.line())
        with Running(*FOLLOW) as following:
            assert account(following.line()) == "cay"
            assert headrace("publish", "bank/credits", input=b'{"account":"dan"}').returncode == 0
            assert account(following.line()) == "dan"
            assert owner.end(signal.SIGKILL)[0] == -signal.SIGKILL
            assert headrace("publish", "bank/credits", input=b'{"account":"eve"}').returncode == 0
            assert account(following.line()) == "eve"
            assert following.end(signal.SIGTERM) == (0, "", "")


def test_following_a_collection_that_is_deleted_ends_with_an_error(bank: None, ok: Ok) -> None:
    with hr.open("headrace-data") as ws, Running(*FOLLOW) as following:
        assert account(following.line()) == "cay"
        ws.delete_collection("bank/credits")
        code, _, error = following.wait()
        assert code == 1
        assert re.match("error: .* has no collection 'bank/credits'", error)


def test_a_limit_ends_following(ok: Ok, bank: None) -> None:
    assert account(ok(*FOLLOW, "--limit", "1")) == "cay"


@pytest.mark.parametrize(
    ("option", "what"), [("--format=table", "a table"), ("--json", "one JSON value")]
)
def test_only_ndjson_can_be_followed(run: Run, bank: None, option: str, what: str) -> None:
    result = run(*FOLLOW, option)
    assert result.exit_code == 1
    assert result.stderr == f"error: --follow cannot print {what}; use --format ndjson\n"

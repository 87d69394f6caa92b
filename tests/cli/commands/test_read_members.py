"""`headrace read --follow` through members, while somebody dies."""

from __future__ import annotations

import json
import os
import random
import signal
from collections import Counter
from collections.abc import Collection
from functools import partial
from pathlib import Path

import pytest

import headrace as hr
from headrace.testing.crash import chosen_seed, eventually
from tests.cli.conftest import Ok
from tests.cli.headrace_process import PATIENCE_S, Running, headrace
from tests.shuffle.transfers import Transfers

pytestmark = pytest.mark.long

SHARDS = 2
KILLS = 4


# proves G5, G6, G7
@pytest.mark.crash
def test_every_document_is_printed_once_whichever_members_are_killed(here: Path) -> None:
    chance = random.Random(chosen_seed(default=5))
    follow = ("read", "-w", "ws", "debits", "credits", "--shards", str(SHARDS), "--follow")
    with hr.open("ws") as ws:
        transfers = Transfers(ws)
        transfers.publish(1_000)
        with Running(*follow) as following:
            printed = printed_ids(following, 1)
            for _ in range(KILLS):
                for _ in range(5):
                    transfers.publish(chance.randrange(1, 3_000))
                printed += printed_ids(following, chance.randrange(2_000))
                members = following.children()
                assert len(members) == SHARDS
                os.kill(chance.choice(sorted(members)), signal.SIGKILL)
                transfers.publish(1)
                replaced = partial(are_replaced, following, members)
                eventually(replaced, PATIENCE_S, "other members")
            printed += printed_ids(following, transfers.committed.total() - printed.total())
            code, rest, said = following.end(signal.SIGINT)
    assert printed == transfers.committed
    assert (code, rest) == (0, "")
    notes = said.splitlines()
    assert len(notes) >= KILLS
    assert all(each.startswith("note: ") and each.endswith("where it stopped") for each in notes)


def printed_ids(following: Running, documents: int) -> Counter[int]:
    return Counter(json.loads(following.line())["id"] for _ in range(documents))


def are_replaced(following: Running, members: Collection[int]) -> bool:
    children = following.children()
    return len(children) == SHARDS and children.isdisjoint(members)


@pytest.mark.crash
def test_a_member_that_was_killed_is_used_again_at_its_address(ok: Ok, bank: None) -> None:
    # What is killed leaves its files.
    with Running("shuffle", "member", "--dir", ".", "--json") as member:
        said = json.loads(member.line())
        address, token = said["address"], said["token"]
        through = ("--member", address, "--member-token", token)
        with Running("read", "bank/credits", "--follow", *through) as following:
            assert json.loads(following.line())["account"] == "cay"
            member.end(signal.SIGKILL)
            assert address in following.note()
            ok("publish", "bank/credits", input='{"account":"dan"}')
            port = address.rpartition(":")[2]
            with Running("shuffle", "member", "--dir", ".", "--port", port, "--token", token):
                assert json.loads(following.line())["account"] == "dan"
            assert address in following.note()
            assert following.end(signal.SIGTERM)[:2] == (0, "")


@pytest.mark.crash
def test_following_through_members_goes_on_when_the_owner_is_killed(bank: None) -> None:
    with Running("serve", "--json") as owner:
        assert owner.line()
        with Running("read", "bank/credits", "--shards", "2", "--follow") as following:
            assert json.loads(following.line())["account"] == "cay"
            owner.end(signal.SIGKILL)
            assert headrace("publish", "bank/credits", input=b'{"account":"dan"}').returncode == 0
            assert json.loads(following.line())["account"] == "dan"
            ended = following.end(signal.SIGINT)
    assert ended == (0, "", "")  # the Session went on with the next owner


def test_what_is_wrong_from_the_beginning_is_told_at_once(bank: None) -> None:
    ended = headrace("read", "bank/credits", "--follow", "--member", "grpc://127.0.0.1:1")
    assert ended.returncode == 1
    assert ended.stderr.startswith(b"error: ")
    assert b"grpc://127.0.0.1:1 cannot be reached" in ended.stderr
    assert ended.stderr.count(b"\n") == 1

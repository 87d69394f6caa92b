from __future__ import annotations

import json

import pytest

import headrace as hr
from tests.cli.conftest import Ok, Run, rows

pytestmark = pytest.mark.long


def test_list_gives_each_journal_with_its_offsets(ok: Ok, bank: None) -> None:
    found = json.loads(ok("journals", "list", "--json"))
    assert [each["journal"] for each in found] == [
        "bank/credits/0000",
        "bank/credits/0001",
        "bank/debits/region=eu/0000",
        "bank/debits/region=us/0000",
    ]
    eu = found[2]
    assert (eu["collection"], eu["partition"]) == ("bank/debits", {"region": "eu"})
    assert (eu["begin"], eu["frames"], eu["bytes"]) == (0, 2, eu["head"])
    names = [line.split()[0] for line in ok("journals", "list").splitlines()]
    assert names == ["journal", *(each["journal"] for each in found)]


def test_list_selects_by_collection_and_partition(ok: Ok, bank: None) -> None:
    def names(*options: str) -> list[str]:
        return [each["journal"] for each in json.loads(ok("journals", "list", "--json", *options))]

    assert names("--collection", "bank/credits") == ["bank/credits/0000", "bank/credits/0001"]
    assert names("--where", "region=eu") == ["bank/debits/region=eu/0000"]
    assert len(names("--where", "region=eu", "--where", "region=us")) == 2
    assert names("--where", "region=mars") == []
    assert ok("journals", "list", "--where", "region=mars") == "no journals\n"


def test_stat_describes_one_journal(ok: Ok, bank: None) -> None:
    name = "bank/debits/region=eu/0000"
    found = json.loads(ok("journals", "stat", name, "--json"))
    assert found == json.loads(ok("journals", "list", "--where", "region=eu", "--json"))[0]
    lines = [line.split() for line in ok("journals", "stat", name).splitlines()]
    assert ["head", str(found["head"])] in lines
    assert ["partition", "region", "eu"] in lines


def test_read_prints_the_committed_documents_from_an_offset_on(ok: Ok, bank: None) -> None:
    name = "bank/debits/region=eu/0000"
    head = json.loads(ok("journals", "stat", name, "--json"))["head"]
    ok("publish", "bank/debits", input='{"account":"dan","region":"eu"}')
    assert [row["account"] for row in rows(ok("journals", "read", name))] == ["ann", "dan"]
    later = rows(ok("journals", "read", name, "--from", str(head)))
    assert [row["account"] for row in later] == ["dan"]


def test_read_gives_one_array_to_those_who_ask_for_json(ok: Ok, bank: None) -> None:
    read = ("journals", "read", "bank/debits/region=eu/0000")
    assert json.loads(ok(*read, "--json")) == rows(ok(*read))
    frames = json.loads(ok(*read, "--raw", "--json"))
    assert frames == rows(ok(*read, "--raw"))
    assert len(frames) == 2
    head = json.loads(ok("journals", "stat", read[-1], "--json"))["head"]
    assert ok(*read, "--json", "--from", str(head)) == "[]\n"


def test_raw_read_shows_frames_acks_hints_and_rollbacks(ok: Ok, bank: None) -> None:
    with hr.open("headrace-data") as ws:
        ws.append("bank/credits", [{"account": "eve", "cents": 1}])
        transaction = ws.publisher().begin()
        transaction.append("bank/debits", [{"account": "x" * (5 << 20), "region": "eu"}])
        transaction.rollback()
    frames = rows(ok("journals", "read", "bank/debits/region=eu/0000", "--raw"))
    assert [frame["flags"] for frame in frames] == ["CONTINUE", "ACK", "CONTINUE", "ACK"]
    assert [frame["end"] for frame in frames[:-1]] == [frame["offset"] for frame in frames[1:]]
    documents, ack, _, rollback = frames
    assert documents["documents"] == 1
    assert (ack["rollback"], rollback["rollback"]) == (False, True)
    hinted = {hint["journal"]: hint for hint in ack["hints"]}
    assert len(hinted) == len(ack["hints"]) == 2
    assert "bank/debits/region=us/0000" in hinted
    assert {hint["clock"] for hint in ack["hints"]} == {ack["clock"]}
    assert {hint["producer"] for hint in ack["hints"]} == {documents["producer"]}
    outside = [
        frame["flags"]
        for journal in ("bank/credits/0000", "bank/credits/0001")
        for frame in rows(ok("journals", "read", journal, "--raw"))
    ]
    assert sorted(outside) == ["ACK", "CONTINUE", "OUTSIDE"]


def test_delete_removes_journals_and_their_documents(run: Run, ok: Ok, bank: None) -> None:
    name = "bank/debits/region=eu/0000"
    refused = run("journals", "delete", name)
    assert refused.stderr.endswith("error: nothing was deleted; answer y, or pass --yes\n")
    assert ok("journals", "delete", name, "--yes") == f"deleted {name}\n"
    assert [row["account"] for row in rows(ok("read", "bank/debits"))] == ["bob"]

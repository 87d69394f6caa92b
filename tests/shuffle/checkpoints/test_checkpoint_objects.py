"""The keys and contents of a task's objects, and how damage to them is reported."""

from __future__ import annotations

from random import Random

import msgspec
import numpy as np
import pytest
import xxhash

from headrace.errors import DataError, UsageError, VersionError
from headrace.frontier import JOURNAL_ROW, PRODUCER_ROW, TAG_BITS, BindingTag, Frontier, JournalTag
from headrace.ids import JournalId
from headrace.shuffle.checkpoint import Checkpoint, JournalRef
from headrace.shuffle.checkpoints.checkpoint_objects import (
    Label,
    decode,
    encode,
    parse_key,
)
from headrace.shuffle.checkpoints.task_keys import check_task_name, checkpoints_prefix
from headrace.storage.contract import check_key
from tests.shuffle.test_checkpoint import checkpoint

LABEL = Label("bank/totals", "0123456789abcdef", "delta", 7)
CHECKPOINT = checkpoint({(0, 0): (50, {1: (10, 20)})}, {0: "name"})
NUMBER = f"{7:020d}"


@pytest.mark.parametrize(
    "name", ["a", "bank/totals", "A.b-c_d", "7", "a/7", ".hidden", "..", "./..", "a" * 120]
)
def test_a_name_is_one_component_of_keys_and_comes_back(name: str) -> None:
    assert check_task_name(name) == name
    label = LABEL._replace(task=name)
    assert check_key(label.key).count("/") == 4
    assert parse_key(label.key) == label
    assert checkpoints_prefix(name).count("/") == 1


def test_the_longest_name_with_the_most_slashes_fits_into_a_key() -> None:
    name = "./" * 59 + "ab"
    assert len(check_task_name(name)) == 120
    check_key(LABEL._replace(task=name).key)


@pytest.mark.parametrize(
    "name", ["", "/", "a/", "/a", "a//b", "a b", "ä", "a%2Fb", "a\n", "a" * 121]
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="cannot name a task; use parts of letters"):
        check_task_name(name)


@pytest.mark.parametrize(
    "key",
    [
        "tasks/a",
        f"tasks/a/{NUMBER}",
        f"tasks/a/0123/else/{NUMBER}",
        f"tasks/a/0123/full/{NUMBER}/more",
        "tasks/a/0123/full/7",
        f"tasks/a/0123/full/{NUMBER}x",
        f"tasks/a%2fb/0123/full/{NUMBER}",
        f"tasks/a%20b/0123/full/{NUMBER}",
        f"other/a/0123/full/{NUMBER}",
        f"other/a/generations/{NUMBER}",
    ],
)
def test_what_others_put_there_is_nobodys(key: str) -> None:
    assert parse_key(key) is None


def test_the_key_of_a_generation_does_not_tell_its_id() -> None:
    label = Label("a", "0123", "generations", 7)
    assert label.key == f"tasks/a/generations/{NUMBER}"
    assert parse_key(label.key) == label._replace(generation="")
    data = encode(label, CHECKPOINT)
    assert decode(label._replace(generation=""), data) == ("0123", CHECKPOINT)


def test_what_was_encoded_is_decoded() -> None:
    for each in (CHECKPOINT, Checkpoint()):
        assert decode(LABEL, encode(LABEL, each)) == (LABEL.generation, each)


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (LABEL._replace(task="b"), "delta 7 of generation 0123456789abcdef of task 'b'"),
        (LABEL._replace(generation="ff"), "delta 7 of generation ff of task 'bank/totals'"),
        (LABEL._replace(kind="full"), "full 7 of generation 0123456789abcdef of task"),
        (LABEL._replace(number=8), "delta 8 of generation 0123456789abcdef of task"),
    ],
)
def test_an_object_in_the_wrong_place_is_recognised(other: Label, named: str) -> None:
    with pytest.raises(DataError) as refused:
        decode(LABEL, encode(other, CHECKPOINT))
    assert refused.value.what.startswith(f"{LABEL.key} holds {named}")
    assert refused.value.what.endswith(f"not {LABEL}")
    assert "reset the task" in refused.value.do


def test_damage_is_an_error_that_names_the_object() -> None:
    data = encode(LABEL, CHECKPOINT)
    rng = Random(1)
    damaged = [data[:cut] for cut in range(len(data))]
    for _ in range(300):
        flipped = bytearray(data)
        flipped[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        damaged.append(bytes(flipped))
    for each in [*damaged, data + b"x"]:
        with pytest.raises(DataError, match=f"{LABEL.key} is damaged: the checksum of its"):
            decode(LABEL, each)


@pytest.mark.parametrize(
    "fields",
    [
        [1, *LABEL],
        [1, *LABEL, 10, b"not compressed"],
        [1, *LABEL[:2], "else", 7, 10, b""],
        "no array",
    ],
)
def test_what_has_a_checksum_and_is_no_checkpoint_is_damaged(fields: object) -> None:
    with pytest.raises(DataError, match=f"{LABEL.key} is damaged: ") as refused:
        decode(LABEL, with_checksum(fields))
    assert "\n" not in str(refused.value)


def test_a_later_format_is_said_to_be_one() -> None:
    with pytest.raises(VersionError, match=f"{LABEL.key} has format 2, this Headrace reads 1"):
        decode(LABEL, with_checksum([2, *LABEL, 0, b"", "something new"]))


def with_checksum(fields: object) -> bytes:
    payload = msgspec.msgpack.encode(fields)
    return bytes(xxhash.xxh3_64_digest(payload)) + payload


@pytest.mark.long
def test_the_size_of_an_object_is_that_of_what_moved() -> None:
    journals = np.zeros(100_000, JOURNAL_ROW)
    journals["place"] = np.arange(len(journals), dtype=np.uint64) << TAG_BITS
    journals["through"] = np.arange(len(journals)) * 1000
    producers = np.zeros(len(journals), PRODUCER_ROW)
    producers["place"] = journals["place"]
    producers["producer"] = np.random.default_rng(1).integers(1, 1 << 47, len(journals))
    refs = {
        JournalTag(n): JournalRef(JournalId(n), f"bank/debits/day=2026-11-15/{n:06d}")
        for n in range(len(journals))
    }
    whole = Checkpoint(Frontier(journals, producers), refs, {BindingTag(0): "debits"})
    assert len(encode(LABEL, whole)) < 40 * len(journals)
    for moved in (1, 10, 1000):
        delta = Checkpoint(Frontier(journals[-moved:].copy(), producers[-moved:].copy()))
        assert len(encode(LABEL, delta)) < 700 + 40 * moved

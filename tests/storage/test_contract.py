"""The contract of objects: the same tests for every kind."""

from __future__ import annotations

import multiprocessing
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import count
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier

import pyarrow as pa
import pytest

from headrace.errors import NotFoundError, UsageError
from headrace.storage import Objects
from headrace.storage.contract import COMPONENT_BYTES_MAX, KEY_BYTES_MAX

LARGE = random.Random(7).randbytes(12 * 1024 * 1024 + 13)
RACES = [f"races/{number}" for number in range(5)]


def keys(objects: Objects, prefix: str = "") -> list[str]:
    return [info.key for info in objects.list(prefix)]


@pytest.mark.parametrize("data", [b"", b"x", b"\0\xff" * 1000, LARGE], ids=len)
def test_what_was_put_is_got(objects: Objects, data: bytes) -> None:
    objects.put("a/b", data)
    assert objects.get("a/b") == data


@pytest.mark.parametrize("data", [b"", LARGE], ids=len)
def test_what_was_put_if_absent_is_got(objects: Objects, data: bytes) -> None:
    assert objects.put_if_absent("a/b", data)
    assert objects.get("a/b") == data


@pytest.mark.parametrize(
    "data",
    [bytearray(b"abc"), memoryview(b"abc"), pa.py_buffer(b"abc"), bytearray(), pa.py_buffer(b"")],
    ids=lambda data: f"{type(data).__name__}-{len(data)}",
)
def test_anything_with_bytes_can_be_put(objects: Objects, data: bytes) -> None:
    objects.put("a", data)
    assert objects.put_if_absent("b", data)
    assert objects.get("a") == objects.get("b") == bytes(data)


def test_a_buffer_changed_after_its_put_does_not_change_the_object(objects: Objects) -> None:
    data = bytearray(b"abc")
    objects.put("a", data)
    objects.put_if_absent("b", data)
    data[:] = b"xyz"
    assert objects.get("a") == objects.get("b") == b"abc"


def test_many_objects_are_put_together(objects: Objects) -> None:
    many = [(f"{number % 3}/{number}", str(number).encode()) for number in range(300)]
    objects.put("1/1", b"replaced")
    objects.put_all(many)
    objects.put_all([])
    assert keys(objects) == sorted(key for key, _ in many)
    assert all(objects.get(key) == data for key, data in many)
    objects.put_all([("a", bytearray(b"abc")), ("b", pa.py_buffer(b"abc")), ("c", b"")])
    assert [objects.get(key) for key in "abc"] == [b"abc", b"abc", b""]


def test_a_put_replaces_what_was_there(objects: Objects) -> None:
    objects.put("a", b"long and old")
    objects.put("a", b"new")
    assert objects.get("a") == b"new"
    assert keys(objects) == ["a"]


def test_put_if_absent_keeps_what_was_there(objects: Objects) -> None:
    objects.put("put", b"old")
    assert not objects.put_if_absent("put", b"new")
    assert objects.get("put") == b"old"
    assert objects.put_if_absent("created", b"old")
    assert not objects.put_if_absent("created", b"new")
    assert objects.get("created") == b"old"


def test_an_object_that_was_deleted_can_be_put_if_absent(objects: Objects) -> None:
    objects.put("a", b"old")
    objects.delete("a")
    assert objects.put_if_absent("a", b"new")
    assert objects.get("a") == b"new"


def test_the_first_of_eight_threads_wins(objects: Objects) -> None:
    together = threading.Barrier(8, timeout=60)

    def claim_all(me: int) -> list[str]:
        won = []
        for key in RACES:
            together.wait()
            if objects.put_if_absent(key, str(me).encode()):
                won.append(key)
        return won

    with ThreadPoolExecutor(8) as threads:
        won = list(threads.map(claim_all, range(8)))
    assert Counter(key for each in won for key in each) == Counter(RACES)
    for me, mine in enumerate(won):
        assert all(objects.get(key) == str(me).encode() for key in mine)


def claim_all(objects: Objects, me: int, together: Barrier, claims: Queue[list[str]]) -> None:
    won = []
    for key in RACES:
        together.wait(timeout=60)
        if objects.put_if_absent(key, str(me).encode()):
            won.append(key)
    claims.put([str(me), *won])


@pytest.mark.long
def test_the_first_of_four_processes_wins(shared_objects: Objects) -> None:
    spawn = multiprocessing.get_context("spawn")
    together, claims = spawn.Barrier(4), spawn.Queue()
    processes = [
        spawn.Process(target=claim_all, args=(shared_objects, me, together, claims))
        for me in range(4)
    ]
    for each in processes:
        each.start()
    won = [claims.get(timeout=120) for _ in processes]
    for each in processes:
        each.join()
    assert Counter(key for _, *mine in won for key in mine) == Counter(RACES)
    for me, *mine in won:
        assert all(shared_objects.get(key) == me.encode() for key in mine)


def test_readers_see_an_overwritten_object_whole(objects: Objects) -> None:
    versions = [bytes([letter]) * size for letter, size in [(97, 300_000), (98, 200_000)]]
    objects.put("a", versions[0])
    done = threading.Event()
    reads = [0, 0, 0]

    def read(me: int) -> None:
        while not done.is_set():
            assert objects.get("a") in versions
            reads[me] += 1

    with ThreadPoolExecutor(len(reads)) as threads:
        readers = [threads.submit(read, me) for me in range(len(reads))]
        try:
            for turn in count(1):
                objects.put("a", versions[turn % 2])
                if min(reads) > 20 or any(each.done() for each in readers):
                    break
        finally:
            done.set()
        for each in readers:
            each.result()


def test_a_range_is_read_exactly(objects: Objects) -> None:
    objects.put("large", LARGE)
    size = len(LARGE)
    for start, length in [(0, 1), (0, size), (size - 1, 1), (5_000_000, 1_000_000), (7, 0)]:
        assert objects.get_range("large", start, length) == LARGE[start : start + length]


@pytest.mark.parametrize(("start", "length"), [(5, 6), (9, 2), (10, 1), (20, 5), (0, 1 << 40)])
def test_a_range_beyond_the_end_is_refused(objects: Objects, start: int, length: int) -> None:
    objects.put("a", b"0123456789")
    with pytest.raises(UsageError, match="beyond its 10 bytes"):
        objects.get_range("a", start, length)


@pytest.mark.parametrize(("start", "length"), [(-1, 5), (0, -1)])
def test_a_negative_range_is_refused(objects: Objects, start: int, length: int) -> None:
    objects.put("a", b"0123456789")
    with pytest.raises(UsageError, match="not a range"):
        objects.get_range("a", start, length)


def test_what_is_absent_is_not_found(objects: Objects) -> None:
    objects.put("a/b", b"1")
    for key in ["b", "a", "a/c", "a/b/c"]:
        with pytest.raises(NotFoundError, match=f"has no object {key};"):
            objects.get(key)
        with pytest.raises(NotFoundError, match=f"has no object {key};"):
            objects.get_range(key, 0, 1)
        assert objects.head(key) is None


def test_head_tells_key_size_and_time(objects: Objects) -> None:
    objects.put("a/b", b"12345")
    info = objects.head("a/b")
    assert info is not None
    assert (info.key, info.bytes) == ("a/b", 5)
    assert abs(datetime.now(UTC) - info.modified) < timedelta(minutes=1)
    assert objects.list() == [info]


def test_a_listing_is_sorted_by_key(objects: Objects) -> None:
    names = ["b", "a/z", "a/b/c", "a-b/c", "a.b", "B", "a0", "10", "9", "_"]
    for name in names:
        objects.put(name, name.encode())
    assert keys(objects) == sorted(names)
    assert [info.bytes for info in objects.list()] == [len(name) for name in sorted(names)]


def test_a_listing_is_of_whole_components(objects: Objects) -> None:
    for name in ["a/b/1", "a/b/c/2", "a/bc/3", "ab/4", "a/b.5"]:
        objects.put(name, b"")
    assert keys(objects, "a/b") == keys(objects, "a/b/") == ["a/b/1", "a/b/c/2"]
    assert keys(objects, "a") == ["a/b.5", "a/b/1", "a/b/c/2", "a/bc/3"]
    assert keys(objects, "a/b/1") == []
    assert keys(objects, "none/there") == []


def test_a_long_listing_is_complete(objects: Objects) -> None:
    names = [f"many/{number:04}" for number in range(1100)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda name: objects.put(name, b""), names))
    assert keys(objects, "many") == names


def test_empty_objects_list_nothing(objects: Objects) -> None:
    assert keys(objects) == []


def test_a_deleted_object_is_gone_and_may_be_deleted_again(objects: Objects) -> None:
    objects.put("a/b", b"1")
    objects.put("a/c", b"2")
    for _ in range(2):
        objects.delete("a/b")
        assert objects.head("a/b") is None
    objects.delete("never/there")
    objects.delete("a")
    objects.delete("a/c/d")
    assert keys(objects) == ["a/c"]


def test_all_objects_below_a_directory_are_deleted(objects: Objects) -> None:
    names = ["a/b/1", "a/b/c/2", "a/bc/3", "ab/4", "a/b.5"]
    for name in names:
        objects.put(name, b"old")
    for _ in range(2):
        objects.delete_all("a/b")
        assert keys(objects) == ["a/b.5", "a/bc/3", "ab/4"]
    objects.delete_all("a/b.5")
    objects.delete_all("never/there")
    assert keys(objects) == ["a/b.5", "a/bc/3", "ab/4"]
    objects.put("a/b/c/2", b"new")
    assert objects.put_if_absent("a/b/1", b"new")
    objects.put_all([("a/b/3", b"new")])
    assert [objects.get(key) for key in keys(objects, "a/b")] == [b"new"] * 3
    objects.delete_all("a/")
    assert keys(objects) == ["ab/4"]


def test_a_thousand_objects_are_deleted_together(objects: Objects) -> None:
    objects.put_all([(f"many/{number}", b"") for number in range(1_050)])
    objects.delete_all("many")
    assert keys(objects) == []


@pytest.mark.parametrize(
    "key",
    ["a%41b", "a%b", "a%2Fb", "k=v/x+y,z@w:1-2", "_", "a..b", "a." * 100, "/".join("k" * 384)],
)
def test_a_key_means_itself(objects: Objects, key: str) -> None:
    objects.put(key, b"1")
    assert objects.get(key) == b"1"
    assert keys(objects) == [key]
    objects.delete(key)
    assert keys(objects) == []


def test_an_object_is_moved_once_whoever_moves_it(objects: Objects) -> None:
    objects.put("a/b", b"moved")
    objects.move("a/b", "c")
    assert (keys(objects), objects.get("c")) == (["c"], b"moved")
    objects.move("a/b", "c")
    assert objects.get("c") == b"moved"
    objects.put("a/b", b"another")
    objects.move("a/b", "c")
    assert (keys(objects), objects.get("c")) == (["c"], b"another")
    with pytest.raises(NotFoundError, match="has no object a/b;"):
        objects.move("a/b", "d/e")
    assert keys(objects) == ["c"]


def test_many_may_move_the_same_object(objects: Objects) -> None:
    for number in range(20):
        objects.put(f"staged/{number}", b"moved")

    def move_all() -> None:
        for number in range(20):
            objects.move(f"staged/{number}", f"{number}")

    with ThreadPoolExecutor(4) as pool:
        for each in [pool.submit(move_all) for _ in range(4)]:
            each.result()
    assert keys(objects) == sorted(str(number) for number in range(20))


@pytest.mark.parametrize(
    "key",
    [
        *["", "/", "/a", "a/", "a//b", "a/../b", "..", ".", "a/./b", ".incoming/x", "a/.b", "a b"],
        *["ä", "a\n", "a\\b", "a*b", "a\0b", "a?b", "a#b", "~"],
        *["k" * (COMPONENT_BYTES_MAX + 1), "/".join("k" * KEY_BYTES_MAX)],
    ],
)
def test_a_bad_key_is_refused_everywhere(objects: Objects, key: str) -> None:  # proves G27
    for call in (
        lambda: objects.put(key, b""),
        lambda: objects.put_if_absent(key, b""),
        lambda: objects.put_all([("other", b""), (key, b"")]),
        lambda: objects.get(key),
        lambda: objects.get_range(key, 0, 0),
        lambda: objects.head(key),
        lambda: objects.move(key, "other"),
        lambda: objects.move("other", key),
        lambda: objects.delete(key),
    ):
        with pytest.raises(UsageError, match="key") as refusal:
            call()
        assert not isinstance(refusal.value, NotFoundError)
    assert keys(objects) == []


@pytest.mark.parametrize("prefix", ["/", "../a", "a//", "/a", "a b"])
def test_a_bad_prefix_is_refused(objects: Objects, prefix: str) -> None:  # proves G27
    with pytest.raises(UsageError, match="is not a key"):
        objects.list(prefix)
    for refused in (prefix, ""):
        with pytest.raises(UsageError, match="is not a key"):
            objects.delete_all(refused)

"""What every key-value store must do, as tests: subclass it and provide an `opener`.

    class TestMine(KvConformance):
        @pytest.fixture
        def opener(self): ...       # each call opens a store; the same one, if it outlives a close

`OUTLIVES_CLOSE` is False for a store whose data ends with it.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import closing
from typing import ClassVar

import pytest

from headrace.errors import UsageError
from headrace.stores.kv.contract import (
    KEY_BYTES_MAX,
    KeyValueStore,
    WriteBatch,
    WriteSequence,
    prefix_end,
)

KvOpener = Callable[[], KeyValueStore]
Entries = list[tuple[bytes, bytes]]

_WRITES = 60
_READERS = 3


def batch_of(**values: bytes | None) -> WriteBatch:
    """Return a batch that puts values under names, and deletes those that are None."""
    batch = WriteBatch()
    for name, value in values.items():
        if value is None:
            batch.delete(name.encode())
        else:
            batch.put(name.encode(), value)
    return batch


def entries_of(
    store: KeyValueStore, start: bytes = b"", end: bytes | None = None, *, reverse: bool = False
) -> Entries:
    """Return what a snapshot of now shows between two keys."""
    with store.snapshot() as snapshot:
        return list(snapshot.scan(start, end, reverse=reverse))


class KvConformance:
    """The suite. `opener` is a pytest fixture that the subclass provides."""

    OUTLIVES_CLOSE: ClassVar[bool] = True

    def test_what_a_batch_puts_is_there(self, opener: KvOpener) -> None:
        with closing(opener()) as store:
            sequence = store.write(batch_of(a=b"1", b=b"", c=bytes(100_000)))
            store.wait_durable(sequence)
            with store.snapshot() as snapshot:
                assert snapshot.get(b"a") == b"1"
                assert snapshot.get(b"b") == b""
                assert snapshot.get(b"c") == bytes(100_000)
                assert snapshot.get(b"d") is None
                assert snapshot.get_many([b"c", b"d", b"a", b"a"]) == [
                    bytes(100_000),
                    None,
                    b"1",
                    b"1",
                ]
                assert snapshot.get_many([]) == []

    def test_a_batch_overwrites_and_deletes(self, opener: KvOpener) -> None:
        with closing(opener()) as store:
            store.write(batch_of(a=b"1", b=b"2", c=b"3"))
            store.write(batch_of(a=b"4", b=None, absent=None, d=b"5"))
            assert entries_of(store) == [(b"a", b"4"), (b"c", b"3"), (b"d", b"5")]

    def test_the_last_change_of_a_key_counts(self, opener: KvOpener) -> None:
        batch = WriteBatch()
        batch.put(b"a", b"1")
        batch.delete(b"a")
        batch.delete(b"b")
        batch.put_many([(b"b", b"2"), (b"b", b"3")])
        with closing(opener()) as store:
            store.write(batch)
            assert entries_of(store) == [(b"b", b"3")]

    def test_sequences_ascend_and_snapshots_name_theirs(self, opener: KvOpener) -> None:
        with closing(opener()) as store:
            with store.snapshot() as before:
                first = store.write(batch_of(a=b"1"))
                second = store.write(batch_of(a=b"2"))
                assert before.sequence < first < second
            with store.snapshot() as after:
                assert after.sequence == second
            assert store.write(WriteBatch()) == second, "an empty batch is no batch"

    def test_batches_become_durable_in_order(self, opener: KvOpener) -> None:
        with closing(opener()) as store:
            sequences = [store.write(batch_of(a=b"%d" % n)) for n in range(5)]
            store.wait_durable(sequences[2])
            assert sequences[2] <= store.durable_sequence <= sequences[-1]
            store.wait_durable(sequences[-1])
            assert store.durable_sequence == sequences[-1]
            store.wait_durable(sequences[0])
            assert store.durable_sequence == sequences[-1], "it never goes back"

    def test_nobody_waits_for_a_batch_that_was_not_written(self, opener: KvOpener) -> None:
        with closing(opener()) as store:
            last = store.write(batch_of(a=b"1"))
            with pytest.raises(UsageError, match="was not written"):
                store.wait_durable(WriteSequence(last + 1))

    @pytest.mark.parametrize("reverse", [False, True])
    def test_a_scan_yields_what_lies_in_its_range(self, opener: KvOpener, reverse: bool) -> None:
        keys = [b"a", b"a\0", b"a\xff", b"b", b"ba", b"c", b"\xff", b"\xff\xff"]
        batch = WriteBatch()
        batch.put_many((key, key * 3) for key in reversed(keys))
        bounds = [b"", *keys, b"aa", b"\xff\xff\xff"]
        with closing(opener()) as store:
            store.write(batch)
            for start in bounds:
                for end in [*bounds, None]:
                    found = entries_of(store, start, end, reverse=reverse)
                    within = [key for key in keys if start <= key and (end is None or key < end)]
                    expected = within[::-1] if reverse else within
                    assert found == [(key, key * 3) for key in expected], (start, end)

    @pytest.mark.parametrize("reverse", [False, True])
    def test_a_scan_of_many_entries_is_whole(self, opener: KvOpener, reverse: bool) -> None:
        entries = [(b"%06d" % n, b"%d" % n * (n % 50)) for n in range(5_000)]
        entries += [(b"large%d" % n, bytes([n]) * 700_000) for n in range(5)]
        batch = WriteBatch()
        batch.put_many(entries)
        with closing(opener()) as store:
            store.write(batch)
            expected = entries[::-1] if reverse else entries
            assert entries_of(store, reverse=reverse) == expected
            some = [each for each in expected if b"001024" <= each[0] < b"004096"]
            assert entries_of(store, b"001024", b"004096", reverse=reverse) == some

    def test_a_scan_may_be_left_unfinished(self, opener: KvOpener) -> None:
        with closing(opener()) as store:
            store.write(batch_of(a=b"1", b=b"2"))
            with store.snapshot() as snapshot:
                assert next(snapshot.scan(b"", None)) == (b"a", b"1")
            store.write(batch_of(c=b"3"))

    def test_scans_of_one_snapshot_may_take_turns(self, opener: KvOpener) -> None:
        batch = WriteBatch()
        batch.put_many((b"%04d" % n, b"v") for n in range(3_000))
        with closing(opener()) as store:
            store.write(batch)
            with store.snapshot() as snapshot:
                up = snapshot.scan(b"", None)
                down = snapshot.scan(b"", None, reverse=True)
                for n, (low, high) in enumerate(zip(up, down, strict=True)):
                    assert (low[0], high[0]) == (b"%04d" % n, b"%04d" % (2_999 - n))

    # proves G24
    def test_a_snapshot_stays_as_it_was(self, opener: KvOpener) -> None:
        with closing(opener()) as store:
            store.write(batch_of(a=b"1", b=b"2"))
            with store.snapshot() as snapshot:
                store.write(batch_of(a=b"3", b=None, c=b"4"))
                assert snapshot.get_many([b"a", b"b", b"c"]) == [b"1", b"2", None]
                assert list(snapshot.scan(b"", None)) == [(b"a", b"1"), (b"b", b"2")]
            assert entries_of(store) == [(b"a", b"3"), (b"c", b"4")]

    # proves G24
    def test_readers_see_whole_batches_in_order_while_one_writes(self, opener: KvOpener) -> None:
        """Each batch puts its number under all keys, so a mixture would show two numbers."""
        names = [b"k%03d" % n for n in range(20)]
        wrong: list[str] = []
        with closing(opener()) as store:
            store.write(_numbered(names, 0))
            done = threading.Event()

            def read() -> None:
                last = -1
                while not done.is_set():
                    with store.snapshot() as snapshot:
                        seen = {value for _, value in snapshot.scan(b"", None)}
                        got = set(snapshot.get_many(names))
                    number = int(next(iter(seen)))
                    if len(seen) != 1 or got != seen or number < last:
                        wrong.append(f"{seen} and {got} after {last}")
                    last = number

            readers = [threading.Thread(target=read) for _ in range(_READERS)]
            for reader in readers:
                reader.start()
            for number in range(1, _WRITES):
                store.write(_numbered(names, number))
            done.set()
            for reader in readers:
                reader.join()
        assert not wrong

    def test_many_threads_read_one_snapshot(self, opener: KvOpener) -> None:
        batch = WriteBatch()
        batch.put_many((b"%04d" % n, b"%d" % n) for n in range(2_000))
        counts: list[int] = []
        with closing(opener()) as store:
            store.write(batch)
            with store.snapshot() as snapshot:

                def read(seed: int) -> None:
                    chance = random.Random(seed)
                    found = sum(
                        snapshot.get(b"%04d" % n) == b"%d" % n
                        for n in (chance.randrange(2_000) for _ in range(200))
                    )
                    counts.append(found + sum(1 for _ in snapshot.scan(b"", None)))

                readers = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
                for reader in readers:
                    reader.start()
                for reader in readers:
                    reader.join()
        assert counts == [2_200] * 4

    def test_the_longest_key_is_stored_and_a_longer_one_refused(self, opener: KvOpener) -> None:
        longest = bytes([200]) * KEY_BYTES_MAX
        with closing(opener()) as store:
            sequence = store.write(_single(longest))
            for key in (longest + b"x", b""):
                with pytest.raises(UsageError, match="key of"):
                    store.write(_single(key))
            assert entries_of(store) == [(longest, b"v")]
            assert store.write(batch_of(a=b"1")) > sequence, "a refused batch breaks nothing"
            with store.snapshot() as snapshot:
                for key in (longest + b"x", b""):
                    assert snapshot.get(key) is None
                    assert snapshot.get_many([key, b"a"]) == [None, b"1"]
                assert list(snapshot.scan(longest + b"x", None)) == []

    def test_a_prefix_ends_where_the_next_begins(self, opener: KvOpener) -> None:
        keys = [b"a", b"a\xff", b"a\xff\xff", b"b", b"\xff", b"\xff\xff1"]
        batch = WriteBatch()
        batch.put_many((key, b"") for key in keys)
        with closing(opener()) as store:
            store.write(batch)
            for prefix in (b"a", b"a\xff", b"\xff", b"\xff\xff", b"c", b""):
                found = [key for key, _ in entries_of(store, prefix, prefix_end(prefix))]
                assert found == [key for key in keys if key.startswith(prefix)], prefix

    def test_a_closed_store_says_so(self, opener: KvOpener) -> None:
        store = opener()
        store.write(batch_of(a=b"1"))
        snapshot = store.snapshot()
        snapshot.close()
        snapshot.close()
        with pytest.raises(UsageError, match="closed"):
            snapshot.get(b"a")
        with pytest.raises(UsageError, match="closed"):
            list(snapshot.scan(b"", None))
        store.close()
        store.close()
        with pytest.raises(UsageError, match="closed"):
            store.write(batch_of(a=b"2"))
        with pytest.raises(UsageError, match="closed"):
            store.snapshot()

    def test_a_store_holds_after_a_close_what_it_held_before(self, opener: KvOpener) -> None:
        if not self.OUTLIVES_CLOSE:
            return
        with closing(opener()) as store:
            last = store.write(batch_of(a=b"1", b=b"2"))
            last = store.write(batch_of(a=None, c=b"3"))
        with closing(opener()) as store:
            assert entries_of(store) == [(b"b", b"2"), (b"c", b"3")]
            assert store.durable_sequence >= last
            assert store.write(batch_of(d=b"4")) > last, "no sequence comes twice"

    def test_a_store_that_is_open_is_refused_to_others(self, opener: KvOpener) -> None:
        if not self.OUTLIVES_CLOSE:
            return
        with closing(opener()) as store:
            store.write(batch_of(a=b"1"))
            with pytest.raises(UsageError, match="is open already"):
                opener()
            assert entries_of(store) == [(b"a", b"1")]
        opener().close()


def _numbered(names: list[bytes], number: int) -> WriteBatch:
    batch = WriteBatch()
    batch.put_many((name, b"%d" % number) for name in names)
    return batch


def _single(key: bytes) -> WriteBatch:
    batch = WriteBatch()
    batch.put(key, b"v")
    return batch

"""Random histories of a key-value store, beside a dictionary that says what it must hold."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.stores.kv.contract import KeyValueSnapshot, KeyValueStore, WriteBatch
from headrace.stores.kv.lmdb_store import LmdbKeyValueStore
from headrace.stores.kv.memory_store import MemoryKeyValueStore
from headrace.stores.kv.slatedb_store import SlatedbKeyValueStore

Model = dict[bytes, bytes]

# Few keys, so that batches meet; bytes at both ends of the order, so that bounds matter.
KEYS = st.binary(min_size=1, max_size=3).map(lambda key: bytes(b"\x00a\xff"[b % 3] for b in key))
VALUES = st.one_of(st.binary(max_size=8), st.just(b"long" * 3_000))
CHANGES = st.dictionaries(KEYS, st.none() | VALUES, max_size=8)
BOUNDS = st.none() | KEYS
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), CHANGES),
        st.tuples(st.just("durable"), st.none()),
        st.tuples(st.just("hold"), st.none()),
        st.tuples(st.just("reopen"), st.none()),
        st.tuples(st.just("scan"), st.tuples(KEYS | st.just(b""), BOUNDS, st.booleans())),
    ),
    max_size=25,
)


@contextmanager
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


def batch_of(changes: dict[bytes, bytes | None]) -> WriteBatch:
    batch = WriteBatch()
    for key, value in changes.items():
        if value is None:
            batch.delete(key)
        else:
            batch.put(key, value)
    return batch


def applied(model: Model, changes: dict[bytes, bytes | None]) -> Model:
    found = {**model, **{key: value for key, value in changes.items() if value is not None}}
    return {key: value for key, value in found.items() if changes.get(key, b"") is not None}


def check_scan(
    snapshot: KeyValueSnapshot,
    model: Model,
    start: bytes = b"",
    end: bytes | None = None,
    reverse: bool = False,
) -> None:
    within = [key for key in sorted(model) if start <= key and (end is None or key < end)]
    expected = [(key, model[key]) for key in (within[::-1] if reverse else within)]
    assert list(snapshot.scan(start, end, reverse=reverse)) == expected
    keys = [*within, b"absent"]
    assert snapshot.get_many(keys) == [model.get(key) for key in keys]


def check_history(opener: Callable[[], KeyValueStore], steps: list[tuple[str, object]]) -> None:
    store = opener()
    model: Model = {}
    held: list[tuple[KeyValueSnapshot, Model]] = []
    last = store.durable_sequence
    try:
        for what, given_ in steps:
            if what == "write":
                assert isinstance(given_, dict)
                sequence = store.write(batch_of(given_))
                has_puts = any(value is not None for value in given_.values())
                assert sequence > last if has_puts else sequence >= last
                last, model = sequence, applied(model, given_)
            elif what == "durable":
                store.wait_durable(last)
                assert store.durable_sequence == last
            elif what == "hold":
                held.append((store.snapshot(), model))
            elif what == "reopen":
                for snapshot, shown in held:
                    check_scan(snapshot, shown)
                    snapshot.close()
                held.clear()
                store.close()
                store = opener()
                assert store.durable_sequence >= last
                last = store.durable_sequence
            else:
                assert isinstance(given_, tuple)
                with store.snapshot() as snapshot:
                    check_scan(snapshot, model, *given_)
                    assert snapshot.sequence == last
        for snapshot, shown in held:
            check_scan(snapshot, shown)
            check_scan(snapshot, shown, reverse=True)
        with store.snapshot() as snapshot:
            check_scan(snapshot, model)
    finally:
        store.close()


# proves G24
@pytest.mark.parametrize("backend", [LmdbKeyValueStore, SlatedbKeyValueStore])
@given(steps=STEPS)
def test_a_store_is_a_sorted_dictionary(
    backend: Callable[[Path], KeyValueStore], steps: list[tuple[str, object]]
) -> None:
    with directory() as path:
        check_history(lambda: backend(path), steps)


@given(steps=STEPS.map(lambda steps: [each for each in steps if each[0] != "reopen"]))
def test_the_store_in_memory_is_a_sorted_dictionary(steps: list[tuple[str, object]]) -> None:
    check_history(MemoryKeyValueStore, steps)

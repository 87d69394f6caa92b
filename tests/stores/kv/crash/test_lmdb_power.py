"""A power failure during or after any commit leaves the store on LMDB with a whole prefix.

LMDB writes the pages of a commit, syncs them, and then writes one of the two pages that begin the
file, which the next sync covers. Between two images of the file lies one commit. So of the sectors
that it changed, a power failure keeps any.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from headrace.stores.kv.contract import WriteBatch
from headrace.stores.kv.lmdb_store import LmdbKeyValueStore
from headrace.testing.crash import chosen_seed
from headrace.testing.kv_conformance import entries_of
from tests.kinds import seeds

PAGE = 4096
SECTOR = 512
HEADS = 2 * PAGE
COMMITS = 12

Entries = dict[bytes, bytes]


def random_batch(chance: random.Random, number: int, entries: Entries) -> WriteBatch:
    batch = WriteBatch()
    for _ in range(chance.randrange(1, 12)):
        key = b"%03d" % chance.randrange(150)
        if chance.random() < 0.3:
            batch.delete(key)
            entries.pop(key, None)
        else:
            entries[key] = bytes([number]) * chance.choice([10, 700, 9_000])
            batch.put(key, entries[key])
    batch.put(b"number", b"%d" % number)
    entries[b"number"] = b"%d" % number
    return batch


def failures(
    before: bytes, after: bytes, head: bytes, chance: random.Random, count: int
) -> Iterator[tuple[bytes, bool]]:
    """Yield what a power failure during a commit may leave, and if the commit may be there.

    `head` is how the file began one commit earlier. It is what lasts if nobody synced since.
    """
    longer = before.ljust(len(after), b"\0")
    changed = [
        at
        for at in range(HEADS, len(after), SECTOR)
        if longer[at : at + SECTOR] != after[at : at + SECTOR]
    ]
    for _ in range(count):
        kept = set(chance.sample(changed, chance.randrange(len(changed) + 1)))
        image = bytearray(longer)
        for at in kept:
            image[at : at + SECTOR] = after[at : at + SECTOR]
        length = chance.choice([len(before), len(after)])
        whole = before[:HEADS] if chance.random() < 0.5 else head
        image[:HEADS] = whole
        yield bytes(image[: max(length, max(kept, default=0) + SECTOR)]), False
    yield after, True
    yield before[:HEADS] + after[HEADS:], False


@pytest.mark.parametrize("seed", seeds(2, deep=60))
def test_a_power_failure_leaves_whole_batches(tmp_path: Path, seed: int) -> None:  # proves G23
    chance = random.Random(chosen_seed(seed))
    data = tmp_path / "store" / "data.mdb"
    states: dict[bytes, Entries] = {b"": {}}
    entries: Entries = {}
    with closing(LmdbKeyValueStore(tmp_path / "store")) as store:
        head = data.read_bytes()[:HEADS]
        for number in range(COMMITS):
            before = data.read_bytes()
            durable = number - 1 if chance.random() < 0.3 else number - 2
            if durable == number - 1:
                store.wait_durable(store._sequence)
                head = before[:HEADS]
            store.write(random_batch(chance, number, entries))
            states[b"%d" % number] = dict(entries)
            for image, is_there in failures(before, data.read_bytes(), head, chance, 5):
                found = reopened(tmp_path / "failed", image, store.path)
                shown = found.get(b"number", b"")
                assert found == states[shown], "no batch is there in part"
                assert int(shown or -1) >= durable, "what is durable is there"
                assert int(shown or -1) == number if is_there else int(shown or -1) < number
            head = before[:HEADS]


def reopened(path: Path, image: bytes, store: Path) -> Entries:
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    shutil.copy(store / "kv.json", path)
    (path / "data.mdb").write_bytes(image)
    with closing(LmdbKeyValueStore(path)) as opened:
        return dict(entries_of(opened))

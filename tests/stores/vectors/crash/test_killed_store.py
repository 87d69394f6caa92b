"""`kill -9` of the process that has a vector store open, again and again."""

from __future__ import annotations

import random
from importlib import import_module
from pathlib import Path

import pytest

from headrace.stores.kv.contract import KeyValueStore
from headrace.stores.kv.lmdb_store import LmdbKeyValueStore
from headrace.stores.vectors.vector_rows import VectorSchema
from headrace.stores.vectors.vector_storage import ChunkCodec, read_chunks, read_schema, read_state
from headrace.testing.crash import Child, chosen_seed, eventually
from tests.stores.vectors.crash import writer_process
from tests.stores.vectors.crash.writer_process import (
    GENERATION,
    TASK,
    Expected,
    change,
    open_store,
    write_number,
)

pytestmark = pytest.mark.crash

WAIT_S = 60.0


class KilledStore:
    """A store whose writer is killed; what it must hold is replayed beside it."""

    def __init__(self, place: Path, seed: int) -> None:
        self.path, self.told, self.seed = place / "kv", place / "told", seed
        self.chance = random.Random(seed)
        self.expected: Expected = {}
        self.number = 0
        """How many writes `expected` has seen."""
        self.named: dict[int, str] = {}
        """Which id each internal id stood for, ever."""
        self.next_row = 1

    def write_and_kill(self) -> None:
        """Kill the writer when it has told of some writes, wherever it is by then."""
        with Child() as child:
            child.start(
                "import_module(module).write_forever(path, told, seed)",
                import_module=import_module,
                module=writer_process.__name__,
                path=str(self.path),
                told=str(self.told),
                seed=self.seed,
            )
            enough = self.told_writes() + self.chance.randint(1, 60)
            eventually(
                lambda: self.told_writes() >= enough or not child.is_alive,
                WAIT_S,
                f"{enough} durable writes",
            )
            assert child.is_alive
            child.kill()

    def told_writes(self) -> int:
        whole = self.told.read_text().rpartition("\n")[0] if self.told.exists() else ""
        return int(whole.rpartition("\n")[2] or 0)

    def check(self) -> None:
        """The store holds all that the writer told of, and at most one write more, whole."""
        store = open_store(str(self.path))
        number = store.take(TASK, GENERATION)
        assert self.told_writes() <= number <= self.told_writes() + 1
        while self.number < number:
            self.number += 1
            change(self.expected, write_number(self.seed, self.number))
        rows = [row for batch in store.scan() for row in batch.to_pylist()]
        assert len(rows) == len(self.expected)
        assert {row["id"]: (row["vector"], row["number"]) for row in rows} == self.expected
        for name, (vector, _) in list(self.expected.items())[:5]:
            assert name in store.search(vector, 5, exact=True).column("id").to_pylist()
        store.close()
        kv = LmdbKeyValueStore(self.path)
        self._check_internal_ids(kv)
        kv.close()

    def _check_internal_ids(self, kv: KeyValueStore) -> None:
        with kv.snapshot() as stored:
            schema = read_schema(stored)
            assert isinstance(schema, VectorSchema)
            codec, state = ChunkCodec(schema), read_state(stored)
            for _, _, contents in read_chunks(stored):
                batch = codec.decode(contents, "")
                for row, name in zip(
                    codec.numbers(batch).tolist(), codec.names(batch), strict=True
                ):
                    assert self.named.setdefault(row, name) == name
                    assert row < state.next_row
            assert state.next_row >= self.next_row
            self.next_row = state.next_row


# proves G24, G26
@pytest.mark.parametrize("kills", [4, pytest.param(100, marks=pytest.mark.deep)])
def test_what_was_durable_is_there_and_no_internal_id_is_used_twice(
    tmp_path: Path, kills: int
) -> None:
    killed = KilledStore(tmp_path, chosen_seed(1))
    for _ in range(kills):
        killed.write_and_kill()
        killed.check()
    assert killed.number >= kills

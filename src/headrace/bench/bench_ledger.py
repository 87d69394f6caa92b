"""What the ledger adds to calls that take 100 ms, and how fast it finds a million results.

The yardstick is the same work on journals: they write intents and results faster, but whoever
resumes has to read all of them into an index first.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa

import headrace
from headrace.bench.processes import child
from headrace.bench.steps import step
from headrace.pipeline.contract import OperatorContext, RecordedCall, UnitRows
from headrace.pipeline.ledger.actor import LedgerActor
from headrace.pipeline.ledger.handle import LedgerHandle
from headrace.pipeline.ledger.keys import call_keys, content_hash, unit_prefix
from headrace.pipeline.ledger.ledger_service import LedgerService
from headrace.pipeline.ledger.ledger_store import LedgerStore
from headrace.pipeline.ledger.local_ledger import LocalLedger
from headrace.pipeline.ledger.messages import LEDGER
from headrace.pipeline.ledger.remote_ledger import RemoteLedger
from headrace.pipeline.ledger.totals import Nanos
from headrace.pipeline.operators.operator import operator_spec
from headrace.settings import MIB, ServiceSettings
from headrace.transport import Server

_CALL_S = 0.1
_CONCURRENCY = 16
_ROUNDS = 3
_UNIT_CALLS = 1000
_RESULT = b"x" * 100
_GENERATION = "bench"
_PAIRS_TOGETHER = 32
_PAIR_ROUNDS = 100
_UNITS_TOGETHER = 100
_STORED_TOGETHER = 10_000


def bench_ledger(directory: Path, results: int = 1_000_000, calls: int = 480) -> dict[str, float]:
    """Measure a stage with and without the ledger, which another process serves; then look up.

    `overhead` is the share of time that the ledger adds to a stage whose calls take 100 ms.
    `lookups_per_s` is the rate at which a worker in the ledger's process finds results, and
    `served_lookups_per_s` the rate in another process.
    """
    figures = asyncio.run(_measure_overhead(directory / "overhead", calls))
    figures |= asyncio.run(_measure_pairs(directory / "pairs"))
    figures |= asyncio.run(_measure_lookups(directory / "lookups", results))
    figures |= _measure_journals(directory / "journals", results)
    return {**figures, "results": results}


async def _measure_overhead(path: Path, calls: int) -> dict[str, float]:
    overheads: list[float] = []
    units = count()

    async def wait(row: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(_CALL_S)
        return row

    async def process(ledger: LedgerHandle | None) -> float:
        is_recorded = ledger is not None
        spec = operator_spec("map", wait, concurrency=_CONCURRENCY, expensive=is_recorded)
        operator = await spec.open(OperatorContext("stage", "worker", "stage", ledger))
        table = pa.table({"id": pa.array(range(calls)), "text": ["a row of a table"] * calls})
        begin_s = time.perf_counter()
        await operator.process(UnitRows(f"unit {next(units)}", table))
        took_s = time.perf_counter() - begin_s
        await operator.close()
        return took_s

    with _served(path) as (address, service):
        async with RemoteLedger(address, service) as ledger:
            for number in range(_ROUNDS):
                step(f"round {number + 1} of {_ROUNDS}: {calls} calls of 100 ms, without and with")
                bare_s = await process(None)
                overheads.append(await process(ledger) / bare_s - 1)
    return {"overhead": median(overheads), "overhead_max": max(overheads)}


async def _measure_pairs(path: Path) -> dict[str, float]:
    """Measure synced intents and results, 32 at a time, and one intent alone."""
    step("synced intents and results")
    alone_ms = []
    async with LocalLedger.open(path, _GENERATION) as ledger:
        begin_s = time.perf_counter()
        for number in range(_PAIR_ROUNDS):
            wanted = _contents(range(_PAIRS_TOGETHER))
            await ledger.claim("s", f"{number}", wanted, owner="a")
            recorded = [RecordedCall(call, _RESULT, 0.001) for call, _ in wanted]
            await ledger.record("s", f"{number}", recorded)
        pairs_s = time.perf_counter() - begin_s
        for number in range(_PAIR_ROUNDS):
            begin_s = time.perf_counter()
            await ledger.claim("s", f"alone {number}", _contents([0]), owner="a")
            alone_ms.append((time.perf_counter() - begin_s) * 1000)
    return {
        "pairs_per_s": _PAIR_ROUNDS * _PAIRS_TOGETHER / pairs_s,
        "intent_p50_ms": median(alone_ms),
    }


async def _measure_lookups(path: Path, results: int) -> dict[str, float]:
    step(f"writing {results:,} results")
    units = [f"unit {number}" for number in range(max(1, results // _UNIT_CALLS))]
    _fill(path, units)
    begin_s = time.perf_counter()
    LedgerActor.open(path, _GENERATION).close()
    reopen_s = time.perf_counter() - begin_s
    step(f"finding {results:,} results, in this process and from another")
    async with LocalLedger.open(path, _GENERATION) as ledger:
        rate = await _look_up(ledger, units)
    with _served(path) as (address, service):
        async with RemoteLedger(address, service) as ledger:
            served_rate = await _look_up(ledger, units)
    return {
        "lookups_per_s": rate,
        "served_lookups_per_s": served_rate,
        "reopen_ms": reopen_s * 1000,
        "file_mib": (path / "data.mdb").stat().st_size / MIB,
    }


def _fill(path: Path, units: list[str]) -> None:
    store = LedgerStore(path, _GENERATION)
    wanted = _contents(range(_UNIT_CALLS))
    for first in range(0, len(units), _UNITS_TOGETHER):
        with store.write() as txn:
            for unit in units[first : first + _UNITS_TOGETHER]:
                for key in call_keys(unit_prefix(_GENERATION, "s", unit), wanted):
                    txn.put_result(key, Nanos(1), _RESULT)
    store.close()


async def _look_up(ledger: LedgerHandle, units: list[str]) -> float:
    wanted = _contents(range(_UNIT_CALLS))
    begin_s = time.perf_counter()
    for unit in units:
        found = await ledger.find("s", unit, wanted)
        assert found[-1] == _RESULT
    return len(units) * _UNIT_CALLS / (time.perf_counter() - begin_s)


def _measure_journals(path: Path, results: int) -> dict[str, float]:
    """Measure what the same would cost on journals with an index in memory."""
    step(f"the same on journals: {results:,} results, read into an index")
    schema = "key string, result binary"
    with headrace.open(path) as workspace:
        collection = workspace.collection("ledger", schema, key="key")
        publisher = workspace.publisher("bench")

        def commit(kind: str, numbers: Iterable[int]) -> None:
            keys = [f"{kind} {number:032d}" for number in numbers]
            transaction = publisher.begin()
            rows = pa.record_batch({"key": keys, "result": [_RESULT] * len(keys)})
            transaction.append(collection, rows)
            transaction.commit()

        begin_s = time.perf_counter()
        for _ in range(_PAIR_ROUNDS):
            commit("intent", range(_PAIRS_TOGETHER))
            commit("result", range(_PAIRS_TOGETHER))
        pairs_s = time.perf_counter() - begin_s
        alone_ms = []
        for _ in range(_PAIR_ROUNDS):
            begin_s = time.perf_counter()
            commit("intent", [0])
            alone_ms.append((time.perf_counter() - begin_s) * 1000)
        for first in range(0, results, _STORED_TOGETHER):
            commit("stored", range(first, min(first + _STORED_TOGETHER, results)))
    before = _resident_bytes()
    begin_s = time.perf_counter()
    index: dict[str, bytes] = {}
    with headrace.open(path) as workspace:
        for batch in workspace.read("ledger"):
            keys, values = batch["key"].to_pylist(), batch["result"].to_pylist()
            index.update(zip(keys, values, strict=True))
    reopen_s = time.perf_counter() - begin_s
    return {
        "journal_pairs_per_s": _PAIR_ROUNDS * _PAIRS_TOGETHER / pairs_s,
        "journal_intent_p50_ms": median(alone_ms),
        "journal_reopen_ms": reopen_s * 1000,
        "journal_index_mib": (_resident_bytes() - before) / MIB,
    }


def _contents(calls: Iterable[int]) -> list[tuple[int, bytes]]:
    return [(call, content_hash("1", b"%d" % call)) for call in calls]


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


@contextmanager
def _served(path: Path) -> Iterator[tuple[str, ServiceSettings]]:
    """Let another process serve the ledger in a directory, as the driver does for its workers."""
    with child("-m", "headrace.bench.bench_ledger", str(path)) as process:
        assert process.stdout
        yield process.stdout.readline().strip(), ServiceSettings()


def _serve(path: Path) -> None:
    actor = LedgerActor.open(path, _GENERATION)
    with Server({LEDGER: LedgerService(actor)}, ServiceSettings()) as server:
        print(server.address, flush=True)
        sys.stdin.read()
    actor.close()


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))

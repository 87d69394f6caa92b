"""Compares reading documents through a shuffle with the disk and with Bytewax."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from headrace.bench.bench_journal import documents, publish
from headrace.bench.peers.bytewax_peer import bytewax_docs_per_s
from headrace.bench.peers.disk_rates import sequential_write_rate
from headrace.bench.shuffle_runs import RunTiming, shuffle_runs
from headrace.bench.steps import step
from headrace.settings import KIB, MIB

_ROUNDS = 3
_MANY_MEMBERS = 8
_JOURNALS = 8
_TRANSACTION = 1000 * _JOURNALS


def bench_shuffle(directory: Path, mib: int = 256) -> dict[str, float]:
    """Measure how fast a new Session reads a backlog, from its opening to the last document.

    Frames hold about a thousand documents, and each transaction writes to all journals; for
    `txn_per_s` every document is a transaction. The owner of the journals and every member are
    processes of their own. Returns medians of the rounds, each beside its yardstick; the CPU time
    of all processes, and the memory of the largest member.
    """
    batch = documents(_TRANSACTION, 68)
    batch_bytes = len(batch.serialize())
    transactions = max(1, mib * MIB // batch_bytes)
    count, total_bytes = transactions * _TRANSACTION, transactions * batch_bytes
    kib_count = max(1, mib * KIB // _TRANSACTION)
    singles = mib * 200
    with shuffle_runs(directory) as bench:
        step(f"publishing {count:,} documents, and others of other sizes")
        publish(bench.workspace, "docs", [batch], transactions, _JOURNALS)
        publish(bench.workspace, "kib", [documents(_TRANSACTION, 992)], kib_count, _JOURNALS)
        one_by_one = [batch.slice(row, 1) for row in range(_TRANSACTION)]
        publish(bench.workspace, "txn", one_by_one, singles, _JOURNALS)
        rounds: list[tuple[float, RunTiming]] = []
        for round in range(_ROUNDS):
            step(f"round {round + 1} of {_ROUNDS}: through two members")
            yardstick = directory / f"yardstick-{round}"
            disk = sequential_write_rate(yardstick, total_bytes, 64 * KIB)
            rounds.append((disk, bench.run("docs", count)))
        step("the same without syncs")
        unsynced = bench.run("docs", count, sync=False)
        step(f"through {_MANY_MEMBERS} members")
        eight = bench.run("docs", count, members=_MANY_MEMBERS)
        step("documents of 1 KiB")
        large = bench.run("kib", kib_count * _TRANSACTION)
        step(f"{singles:,} transactions of one document")
        small = bench.run("txn", singles)
    seconds = median(run.seconds for _, run in rounds)
    result = {
        "docs_per_s": count / seconds,
        "ratio_to_disk": median(total_bytes / run.seconds / disk for disk, run in rounds),
        "disk_mib_per_s": median(disk for disk, _ in rounds) / MIB,
        "cpu_s": median(run.cpu_s for _, run in rounds),
        "peak_mib": max(run.peak_mib for _, run in rounds),
        "docs_per_s_unsynced": count / unsynced.seconds,
        "docs_per_s_8_members": count / eight.seconds,
        "docs_1kib_per_s": kib_count * _TRANSACTION / large.seconds,
        "txn_per_s": singles / small.seconds,
        "documents": count,
        "document_bytes": batch_bytes / _TRANSACTION,
    }
    step("Bytewax, if it is installed")
    if (peer := bytewax_docs_per_s(directory, documents(mib * 4000, 68))) is not None:
        result["bytewax_docs_per_s"] = peer
        result["ratio_to_bytewax"] = result["docs_per_s"] / peer
    return result

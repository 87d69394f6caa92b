"""Measures how reading documents through a shuffle grows with the number of its members."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from headrace.bench.bench_journal import documents, publish
from headrace.bench.peers.disk_rates import sequential_write_rate
from headrace.bench.shuffle_runs import ReaderProcesses, RunTiming, ShuffleRuns, shuffle_runs
from headrace.bench.steps import step
from headrace.settings import KIB, MIB, JournalSettings, Settings

_MEMBERS = (1, 2, 4, 8, 16)
_ROUNDS = 3
_JOURNALS = 64
_FRAME = 1_000
_LARGE_FRAME = 16_000


@dataclass(frozen=True)
class _Published:
    collection: str
    documents: int
    bytes: int


@dataclass(frozen=True)
class _Curve:
    suffix: str
    """The figures of the curve end with it."""
    published: _Published
    sync: bool = True


def bench_members(directory: Path, mib: int = 1536, most: int | None = None) -> dict[str, float]:
    """Measure 1, 2, 4, 8 and 16 members, as far as there are cores, or `most`.

    The owner of the journals, the members, and one reader for each member are processes of their
    own. A run takes from the opening of the Session until every document is read. Frames hold
    about a thousand documents; those of `large_frames` have 16 times as many. Returns medians of
    the rounds. Each round measures the disk, and then every number of members.
    """
    counts = members_to_measure(most)
    # The publisher splits no frame, and sends no part of a transaction before the rest.
    journal = JournalSettings(frame_bytes_target=16 * MIB, transaction_buffer_bytes=64 * MIB)
    with shuffle_runs(directory, Settings(journal=journal)) as runs:
        small = _publish(runs, _FRAME, mib)
        large = _publish(runs, _LARGE_FRAME, mib)
        curves = [
            _Curve("", small),
            _Curve("_unsynced", small, sync=False),
            _Curve("_large_frames", large),
        ]
        disks: list[float] = []
        timings: dict[tuple[str, int], list[RunTiming]] = {}
        for round in range(_ROUNDS):
            step(f"round {round + 1} of {_ROUNDS}: the disk")
            yardstick = directory / f"yardstick-{round}"
            disks.append(sequential_write_rate(yardstick, small.bytes, 64 * KIB))
            for members in counts:
                step(f"round {round + 1} of {_ROUNDS}: {members} of {counts[-1]} members")
                for curve in curves:
                    timings.setdefault((curve.suffix, members), []).append(
                        runs.run(
                            curve.published.collection,
                            curve.published.documents,
                            members=members,
                            sync=curve.sync,
                            readers=ReaderProcesses,
                        )
                    )
    figures = {
        "documents": float(small.documents),
        "document_bytes": small.bytes / small.documents,
        "disk_mib_per_s": median(disks) / MIB,
    }
    for curve in curves:
        for members in counts:
            found = timings[curve.suffix, members]
            figures |= _figures(curve, members, found, disks)
    return figures | _growth(curves, counts, figures)


def members_to_measure(most: int | None) -> list[int]:
    return [each for each in _MEMBERS if each <= (most or os.cpu_count() or 1)]


def _publish(runs: ShuffleRuns, frame: int, mib: int) -> _Published:
    batch = documents(frame * _JOURNALS, 68)
    batch_bytes = len(batch.serialize())
    transactions = max(1, mib * MIB // batch_bytes)
    step(f"publishing {transactions * batch.num_rows:,} documents in frames of {frame:,}")
    collection = f"frames-of-{frame}"
    publish(runs.workspace, collection, [batch], transactions, _JOURNALS)
    return _Published(collection, transactions * batch.num_rows, transactions * batch_bytes)


def _figures(
    curve: _Curve, members: int, timings: Sequence[RunTiming], disks: Sequence[float]
) -> dict[str, float]:
    count, end = curve.published.documents, f"_{members}{curve.suffix}"
    figures = {
        f"docs_per_s{end}": count / median(each.seconds for each in timings),
        f"cpu_us{end}": median(each.cpu_s for each in timings) / count * 1e6,
    }
    if curve.sync:
        figures[f"ratio_to_disk{end}"] = median(
            curve.published.bytes / each.seconds / disk
            for each, disk in zip(timings, disks, strict=True)
        )
    figures[f"read_s{end}"] = median(each.read_s for each in timings)
    figures[f"release_s{end}"] = median(each.release_s for each in timings)
    return figures


def _growth(
    curves: Sequence[_Curve], counts: Sequence[int], figures: dict[str, float]
) -> dict[str, float]:
    """Return what several members do, compared with one."""
    found: dict[str, float] = {}
    for curve in curves:
        one = figures[f"docs_per_s_1{curve.suffix}"]
        for members in counts[1:]:
            rate = figures[f"docs_per_s_{members}{curve.suffix}"]
            found[f"speedup_{members}{curve.suffix}"] = rate / one
    if len(counts) > 1:
        found["cpu_growth"] = figures[f"cpu_us_{counts[-1]}"] / figures["cpu_us_1"]
    return found

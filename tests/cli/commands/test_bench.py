"""`headrace bench`: what it prints, at the smallest size."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from headrace.bench import (
    bench_catalog,
    bench_coordinator,
    bench_journal,
    bench_ledger,
    bench_queue,
    bench_scale,
    bench_shuffle,
    bench_stage,
    bench_timeseries,
    bench_utilisation,
    bench_vectors,
)
from headrace.bench.bench_journal import documents
from headrace.bench.peers import disk_rates
from headrace.bench.peers.bytewax_peer import bytewax_docs_per_s
from headrace.bench.peers.remote_write_peers import PEERS
from headrace.bench.targets import TARGETS, noise, unit_of, verdict
from tests.cli.conftest import Ok, Run


@pytest.mark.long
def test_bench_catalog_measures_its_yardsticks_in_the_same_run(
    ok: Ok, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_catalog, "_IDLE_S", 0.1)
    found = json.loads(ok("bench", "catalog", "--journals", "30", "--json"))
    assert (found["bench"], found["journals"]) == ("catalog", 30)
    measured = {"create_s", "list_s", "notice_p50_ms", "notice_p99_ms", "watch_open_s", "reopen_s"}
    yardsticks = {"disk_files_s", "disk_sync_p50_ms", "disk_sync_p99_ms"}
    others = {"bench", "cpus", "load", "journals", "idle_cpu"}
    assert found.keys() == others | measured | yardsticks
    assert all(found[key] > 0 for key in measured | yardsticks)
    assert found["disk_sync_p50_ms"] <= found["disk_sync_p99_ms"]
    assert list(here.iterdir()) == []


def test_bench_journal_shows_people_a_figure_a_line_with_unit_and_verdict(
    run: Run, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_journal, "_ROUNDS", 2)
    result = run("bench", "journal", "--mib", "1")
    assert result.exit_code == 0
    lines = [line.split(maxsplit=3) for line in result.stdout.splitlines()]
    assert lines[0] == ["figure", "value", "unit", "verdict"]
    values = {name: float(value.replace(",", "")) for name, value, *_ in lines[1:]}
    assert {"ratio_to_disk", "docs_per_s", "disk_mib_per_s"} <= values.keys()
    assert all(value > 0 for value in values.values())
    told = {name: rest for name, _, *rest in lines[1:]}
    assert told["disk_mib_per_s"] == ["MiB/s", "yardstick"]
    assert told["document_bytes"] == ["bytes"]
    met = "met" if values["docs_per_s"] >= 1_000_000 else "missed"
    assert told["docs_per_s"] == ["documents/s", f"{met}: at least 1,000,000"]
    steps = "1 MiB to the disk, to journals and back"
    *progress, noise = result.stderr.splitlines()
    assert progress == [f"note: journal: round {n} of 2: {steps}" for n in (1, 2)]
    assert noise.startswith("note: the load was ")
    assert list(here.iterdir()) == []


@pytest.mark.long
def test_bench_queue_measures_every_backend(
    ok: Ok, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_queue, "_ROUNDS", 1)
    monkeypatch.setattr(bench_queue, "_CALLS", 20)
    monkeypatch.setattr(bench_queue, "_FETCHED", 200)
    monkeypatch.setattr(bench_stage, "_UNITS", 20)
    monkeypatch.setattr(bench_stage, "_RESUMES", 1)
    found = json.loads(ok("bench", "queue", "--messages", "1000", "--json"))
    assert (found["bench"], found["messages"]) == ("queue", 1000)
    assert TARGETS["queue"].keys() <= found.keys()
    assert all(found[figure] > 0 for figure in TARGETS["queue"])
    assert found["local_p50_ms"] <= found["local_p99_ms"]
    assert found["resume_rows"] == 200
    assert min(found["resume_s"], found["resume_tenth_s"]) > 0
    assert list(here.iterdir()) == []


@pytest.mark.crash
def test_bench_utilisation_repeats_no_more_than_was_under_way(
    ok: Ok, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_utilisation, "has_ray", lambda: False)
    found = json.loads(ok("bench", "utilisation", "--units", "24", "--json"))
    assert (found["units"], found["workers"]) == (24, 4)
    assert 0 < found["utilisation"] < 1
    assert found["utilisation"] * found["took_s"] == pytest.approx(24 / 4 * 0.05 + 0.05)
    assert 24 <= found["calls_before_kill"] < 48
    assert found["repeated"] <= 2 * 4
    assert "ray_utilisation" not in found
    assert list(here.iterdir()) == []


@pytest.mark.crash
def test_bench_utilisation_has_a_peer_to_compare_with_if_it_is_installed(here: Path) -> None:
    pytest.importorskip("ray", exc_type=ImportError)
    found = bench_utilisation.measure_peer(here, 24)
    assert 0 < found["ray_utilisation"] < 1
    assert 0 <= found["ray_repeated"] <= found["ray_calls_before_kill"]


@pytest.mark.parametrize(
    ("figure", "unit"),
    [
        ("ratio_to_disk", "times"),
        ("docs_per_s_8_members", "documents/s"),
        ("publish_mib_per_s", "MiB/s"),
        ("idle_cpu", "cores"),
        ("cpu_s", "core seconds"),
        ("notice_p99_ms", "ms"),
        ("owner_killed_s_max", "s"),
        ("delta_bytes_1000", "bytes"),
        ("memory_produce", "messages/s"),
        ("local_fetch_10000_s", "s"),
        ("stage_mb", "MB"),
        ("ray_repeated", "calls"),
        ("streams", ""),
    ],
)
def test_a_figure_has_the_unit_of_its_name(figure: str, unit: str) -> None:
    assert unit_of(figure) == unit


def test_a_verdict_is_about_the_target_of_that_bench() -> None:
    assert verdict("catalog", "idle_cpu", 0.05) == "met: at most 0.05"
    assert verdict("catalog", "idle_cpu", 0.051) == "missed: at most 0.05"
    assert verdict("scale", "idle_cpu", 0.1) == "met: at most 0.2"
    assert verdict("journal", "read_docs_per_s", 2_999_999) == "missed: at least 3,000,000"
    assert verdict("journal", "disk_mib_per_s", 1) == "yardstick"
    assert verdict("journal", "frame_kib", 1) == ""


def test_the_noise_of_the_machine_is_stated() -> None:
    assert noise(0.4, 2).startswith("the load was 0.4 on 2 cores before it began: it was quiet;")
    assert "others use this machine, so the figures are lower" in noise(0.6, 2)


def test_every_target_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "benchmarks.md").read_text()
    for name, targets in TARGETS.items():
        told = ", ".join(f"`{figure}` {target}" for figure, target in targets.items())
        assert f"| `{name}` | {told} |\n" in page


@pytest.mark.long
def test_bench_ledger_measures_journals_in_the_same_run(
    ok: Ok, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_ledger, "_ROUNDS", 1)
    monkeypatch.setattr(bench_ledger, "_PAIR_ROUNDS", 3)
    arguments = ("--results", "2000", "--calls", "32", "--json")
    found = json.loads(ok("bench", "ledger", *arguments))
    measured = {"lookups_per_s", "served_lookups_per_s", "pairs_per_s", "intent_p50_ms"}
    yardsticks = {"journal_pairs_per_s", "journal_intent_p50_ms", "journal_reopen_ms"}
    assert all(found[key] > 0 for key in measured | yardsticks | {"reopen_ms", "file_mib"})
    assert found["overhead"] <= found["overhead_max"]
    assert found["results"] == 2000
    assert list(here.iterdir()) == []


def test_bench_ingest_measures_its_yardsticks_in_the_same_run(
    ok: Ok, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_coordinator, "_ROUNDS", 1)
    monkeypatch.setattr(bench_coordinator, "_DURABLE_WRITES", 5)
    arguments = ("--part", "coordinator", "--scale", "0.004", "--json")
    found = json.loads(ok("bench", "ingest", *arguments))
    measured = {"writes_per_s", "single_writes_per_s", "durable_p50_ms", "durable_p99_ms"}
    yardsticks = {"queue_writes_per_s", "disk_sync_p50_ms", "disk_sync_p99_ms", "ratio_to_queue"}
    assert all(found[key] > 0 for key in measured | yardsticks)
    assert found["writes"] == 4000
    assert list(here.iterdir()) == []


@pytest.mark.long
def test_bench_ingest_measures_time_series_beside_installed_peers(
    ok: Ok, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_timeseries, "_ROUNDS", 1)
    monkeypatch.setattr(bench_timeseries, "_QUERIES", 2)
    found = json.loads(ok("bench", "ingest", "--part", "timeseries", "--scale", "0.1", "--json"))
    assert found["samples"] == 400_000
    assert 0.1 < found["chunk_bytes_per_sample"] < found["bytes_per_sample"] < 4
    measured = {"samples_per_s", "range_ms", "first_range_ms"}
    assert all(found[key] > 0 for key in measured | {"http_samples_per_s", "http_range_ms"})
    for peer in PEERS:
        assert (f"ratio_to_{peer.name}" in found) == peer.is_installed
        assert (f"query_ratio_to_{peer.name}" in found) == peer.is_installed
    assert ("query_ratio_to_duckdb" in found) == (find_spec("duckdb") is not None)
    assert list(here.iterdir()) == []


def test_bench_ingest_names_its_parts(run: Run, here: Path) -> None:
    result = run("bench", "ingest", "--part", "nothing")
    assert result.exit_code == 1
    assert "'nothing' is no part of this benchmark; name one of coordinator" in result.stderr


@pytest.mark.long
def test_bench_shuffle_measures_its_yardstick_in_the_same_run(
    ok: Ok, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_shuffle, "_ROUNDS", 1)
    monkeypatch.setattr(bench_shuffle, "_MANY_MEMBERS", 3)
    monkeypatch.setattr(bench_shuffle, "bytewax_docs_per_s", lambda *_: None)
    found = json.loads(ok("bench", "shuffle", "--mib", "1", "--json"))
    measured = {"docs_per_s", "ratio_to_disk", "cpu_s", "peak_mib", "docs_1kib_per_s", "txn_per_s"}
    variants = {"docs_per_s_unsynced", "docs_per_s_8_members", "disk_mib_per_s", "document_bytes"}
    assert measured | variants <= found.keys()
    assert all(found[key] > 0 for key in measured | variants)
    assert found["documents"] == 8000
    assert found["docs_per_s"] * found["document_bytes"] < found["disk_mib_per_s"] * 2**20
    assert list(here.iterdir()) == []


def test_bench_shuffle_has_a_peer_to_compare_with_if_it_is_installed(here: Path) -> None:
    pytest.importorskip("bytewax.dataflow", exc_type=ImportError)
    rate = bytewax_docs_per_s(here, documents(2000, 68))
    assert rate
    assert 100 < rate < 10_000_000
    ended = [path.name for path in (here / "bytewax").glob("end-*")]
    assert sorted(ended) == ["end-0", "end-1"]


@pytest.mark.long
def test_bench_scale_counts_its_streams_and_moves_what_it_says(
    ok: Ok, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_scale, "_IDLE_S", 0.1)
    monkeypatch.setattr(bench_scale, "_TRANSACTIONS", 5)
    found = json.loads(ok("bench", "scale", "--journals", "300", "--members", "3", "--json"))
    assert (found["journals"], found["members"]) == (300, 3)
    assert found["streams"] == 3 + 3 * 2
    measured = {"open_s", "visible_p50_ms", "visible_p99_ms", "member_mib", "disk_sync_p50_ms"}
    assert all(found[key] > 0 for key in measured)
    assert 0 < found["delta_bytes_1"] < found["delta_bytes_1000"]
    assert 0 < found["offset_bytes"] <= 200
    assert "idle_cpu" in found
    assert list(here.iterdir()) == []


@pytest.mark.long
def test_bench_recovery_repeats_the_checkpoint_of_the_killed_session(ok: Ok, here: Path) -> None:
    # proves G10
    found = json.loads(ok("bench", "recovery", "--documents", "5000", "--strikes", "0", "--json"))
    assert found["documents_ahead"] == 5000
    assert found["queued_mib"] > 0.4
    assert 0 < found["open_s"] < found["first_checkpoint_s"] <= found["all_visible_s"]
    assert list(here.iterdir()) == []


def test_the_disk_yardsticks_do_what_they_say_and_leave_nothing(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    unlink = os.unlink

    def remove(path: str) -> None:
        made.append(path)
        unlink(path)

    monkeypatch.setattr(os, "unlink", remove)
    assert disk_rates.empty_files_s(here, 7) > 0
    assert len(set(made)) == 7
    with disk_rates.small_syncs(here) as sync_s:
        assert min(sync_s() for _ in range(3)) > 0
        assert (here / "yardstick").stat().st_size == 3 * 4096
    assert list(here.iterdir()) == []


def test_bench_ingest_compares_vectors_with_brute_force(
    ok: Ok, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_vectors, "_QUERIES", 5)
    monkeypatch.setattr(bench_vectors, "_SINGLE_WRITES", 3)
    arguments = ("--part", "vectors", "--scale", "0.02", "--json")
    found = json.loads(ok("bench", "ingest", *arguments))
    measured = {"vectors_per_s", "search_p50_ms", "search_p99_ms", "exact_search_p50_ms"}
    others = {"filtered_search_p50_ms", "durable_upsert_p50_ms", "bytes_per_vector"}
    yardsticks = {"numpy_search_p50_ms", "ratio_to_numpy", "vectors_reopen_s"}
    assert all(found[key] > 0 for key in measured | others | yardsticks)
    assert found["recall_at_10"] == found["filtered_recall_at_10"] == 1.0
    assert found["vectors"] == 2000
    assert list(here.iterdir()) == []

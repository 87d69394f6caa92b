"""`headrace bench` and `headrace demo`: what they print, at the smallest size."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from headrace.bench import catalog, disk
from tests.cli.conftest import Ok


def test_bench_catalog_measures_its_yardsticks_in_the_same_run(
    ok: Ok, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "_IDLE_S", 0.1)
    found = json.loads(ok("bench", "catalog", "--journals", "30", "--json"))
    assert (found["bench"], found["journals"]) == ("catalog", 30)
    measured = {"create_s", "list_s", "notice_p50_ms", "notice_p99_ms", "watch_open_s", "reopen_s"}
    yardsticks = {"disk_files_s", "disk_sync_p50_ms", "disk_sync_p99_ms"}
    assert found.keys() == {"bench", "cpus", "journals", "idle_cpu"} | measured | yardsticks
    assert all(found[key] > 0 for key in measured | yardsticks)
    assert found["disk_sync_p50_ms"] <= found["disk_sync_p99_ms"]
    assert list(here.iterdir()) == []


def test_bench_journal_shows_people_a_figure_a_line(ok: Ok, here: Path) -> None:
    lines = [line.split() for line in ok("bench", "journal", "--mib", "1").splitlines()]
    assert lines[0] == ["figure", "value"]
    values = {name: float(value.replace(",", "")) for name, value in lines[1:]}
    assert {"ratio_to_disk", "docs_per_s", "disk_mib_per_s"} <= values.keys()
    assert all(value > 0 for value in values.values())
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
    assert disk.empty_files_s(here, 7) > 0
    assert len(set(made)) == 7
    with disk.small_syncs(here) as sync_s:
        assert min(sync_s() for _ in range(3)) > 0
        assert (here / "yardstick").stat().st_size == 3 * 4096
    assert list(here.iterdir()) == []


def test_the_demo_tells_people_and_programs_the_same(ok: Ok) -> None:
    demo = ("demo", "--transactions", "25")
    found = json.loads(ok(*demo, "--json"))
    assert found.pop("seconds") > 0
    debits, credits = found["collections"].values()
    assert (found["committed"], found["given_up"]) == (23, 2)
    assert debits["documents"] == credits["documents"] == 23
    assert debits["cents"] == -credits["cents"] < 0
    assert (found["total_cents"], found["same_after_reopening"]) == (0, True)
    shown = ok(*demo)
    assert f"23 documents, {credits['cents'] / 100:,.2f}" in shown
    assert "the same after reopening     yes" in shown

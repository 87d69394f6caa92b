"""`headrace demo`: its acts one after the other, a line for each, and what ends it."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from headrace.cli.acts.bank_act import BankAct
from headrace.cli.acts.calls_act import CallsAct
from headrace.cli.acts.contract import Outcome
from headrace.cli.acts.stores_act import StoresAct
from headrace.testing.crash import eventually
from tests.cli.acts.test_bank_act import GOOD as GOOD_BANK
from tests.cli.acts.test_calls_act import GOOD as GOOD_CALLS
from tests.cli.acts.test_stores_act import GOOD as GOOD_STORES
from tests.cli.conftest import Run
from tests.cli.headrace_process import PATIENCE_S, SPARK_S, Running


@pytest.mark.spark
def test_ctrl_c_ends_it_without_a_word(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(here))
    with Running("demo") as running:
        assert running.note() == (
            "note: 2,000 transfers are made while a task on Spark applies them\n"
        )
        eventually(lambda: bool(running.children()), PATIENCE_S, "the JVM")
        running.process.send_signal(signal.SIGINT)
        code = running.process.wait(SPARK_S)
        assert (code, *running.wait()[1:]) == (130, "", "")
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("bad", ["", "bank", "calls", "stores"])
def test_a_line_for_each_act_says_whether_it_held(
    run: Run, monkeypatch: pytest.MonkeyPatch, bad: str
) -> None:
    outcomes: dict[str, Outcome] = {
        "bank": GOOD_BANK._replace(lost=int(bad == "bank")),
        "calls": GOOD_CALLS._replace(lost=int(bad == "calls")),
        "stores": GOOD_STORES._replace(wrong_hits=int(bad == "stores")),
    }
    monkeypatch.setattr(BankAct, "run", lambda _: outcomes["bank"])
    monkeypatch.setattr(CallsAct, "run", lambda _: outcomes["calls"])
    monkeypatch.setattr(StoresAct, "run", lambda _: outcomes["stores"])
    monkeypatch.setattr(StoresAct, "show", lambda _: print("a chart"))
    result = run("demo")
    assert result.exit_code == (1 if bad else 0)
    assert result.stdout.splitlines()[-3:] == [each.verdict() for each in outcomes.values()]
    assert result.stdout.count("a chart") == 1
    as_json = json.loads(run("demo", "--json").stdout)
    assert {name: each["is_good"] for name, each in as_json.items()} == {
        name: name != bad for name in outcomes
    }
    assert as_json["stores"]["samples"] == GOOD_STORES.samples._asdict()
    for name, outcome in outcomes.items():
        alone = run("demo", "--act", name)
        assert alone.exit_code == (1 if bad == name else 0)
        assert alone.stdout.splitlines()[-1] == outcome.verdict()
        assert outcome.verdict() not in run("demo", "--act", name, "--json").stdout

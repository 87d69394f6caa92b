"""`headrace dead-letters`: rows that were given up are listed, replayed, and paid for once more."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Ok, Run
from tests.cli.pipeline_files import ROWS, calls, stored, write_pipeline

pytestmark = pytest.mark.long


def test_dead_letters_are_listed_and_replayed(ok: Ok, run: Run) -> None:
    write_pipeline(failing=(3, 17))
    ok("run", "answers.py")
    found = json.loads(ok("dead-letters", "list", "answers", "-w", "data", "--json"))
    assert sorted(each["value"]["n"] for each in found) == [3, 17]
    assert all("no answer" in each["error"] for each in found)
    header, *lines = ok("dead-letters", "list", "answers", "-w", "data").splitlines()
    assert header.split() == ["stage", "unit", "row", "attempts", "error"]
    assert [line.split()[0] for line in lines] == ["answer", "answer"]
    assert len(ok("dead-letters", "list", "answers", "--stage", "sink", "-w", "data").split()) == 5

    assert ok("dead-letters", "replay", "answers", "-w", "data") == (
        "2 rows of answers will be processed by its next run\n"
    )
    assert json.loads(ok("dead-letters", "replay", "answers", "-w", "data", "--json")) == {
        "job": "answers",
        "replayed": 0,
    }
    write_pipeline(failing=())
    ok("run", "answers.py", "--on-change", "resume")
    assert sorted(stored()) == list(range(ROWS))
    assert sorted(calls()) == sorted([*range(ROWS), 3, 17])


def test_names_that_are_wrong(run: Run, ok: Ok, bank: None) -> None:
    for command in ("list", "replay"):
        result = run("dead-letters", command, "nope")
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr == (
            "error: there is no job 'nope' in ./headrace-data; check its name, and the workspace\n"
        )
    write_pipeline(rows=1)
    ok("run", "answers.py")
    for command in ("list", "replay"):
        result = run("dead-letters", command, "answers", "--stage", "nope", "-w", "data")
        assert result.stderr.startswith("error: job 'answers' has no stage 'nope'; name one of ")

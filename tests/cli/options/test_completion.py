"""What a shell completes, and that it opens nothing for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import headrace as hr
from headrace.cli import app
from headrace.shuffle import History
from tests.cli.conftest import Ok


def completed(line: str, *, location: str = "") -> list[str]:
    """What bash offers for the last word of a line."""
    environment = {
        "_HEADRACE_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
    } | ({"HEADRACE_WORKSPACE": location} if location else {})
    result = CliRunner().invoke(app, [], env=environment, prog_name="headrace")
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout.split()


def test_commands_and_options_are_completed() -> None:
    assert completed("headrace col") == ["collections"]
    assert completed("headrace task ch") == ["checkpoints"]
    assert completed("headrace read --sh") == ["--shards"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_of_a_shell_can_be_shown(
    ok: Ok, shell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Typer asks which shell started it, and that may be `make`'s.
    monkeypatch.setattr("typer.completion._get_shell_name", lambda: shell)
    assert "_HEADRACE_COMPLETE" in ok("--show-completion")


@pytest.mark.long
def test_collections_are_those_of_the_owner_that_runs(here: Path) -> None:
    with hr.open("bank") as workspace:
        for name in ("bank/debits", "bank/credits", "other"):
            workspace.collection(name, "n long")
        assert completed("headrace read bank/", location="bank") == ["bank/credits", "bank/debits"]
        assert completed("headrace read -w bank oth") == ["other"]
        assert completed("headrace collections show bank/d", location="bank") == ["bank/debits"]
        assert completed("headrace publish o", location="bank") == ["other"]
        address = str(workspace.address)
        assert completed("headrace read o", location=address) == []  # it asks for a token
    assert completed("headrace read bank/", location="bank") == []
    assert not (here / "bank" / "owner.json").exists()
    assert completed("headrace read x", location="nowhere") == []
    assert not (here / "nowhere").exists()


def test_tasks_are_completed_without_an_owner(here: Path) -> None:
    with hr.open("bank") as workspace:
        for name in ("kept", "moves"):
            History(workspace.objects, name)
    assert completed("headrace task show ", location="bank") == ["kept", "moves"]
    assert completed("headrace task run m", location="bank") == ["moves"]
    assert completed("headrace task show x", location="bank") == []
    assert completed("headrace task show x", location="nowhere") == []
    assert not (here / "nowhere").exists()


def test_jobs_are_completed_without_an_owner(here: Path) -> None:
    for name in ("captions", "labels"):
        (here / "bank" / "pipelines").mkdir(parents=True, exist_ok=True)
        (here / "bank" / "pipelines" / f"{name}.lock").touch()
    assert completed("headrace pipeline status ", location="bank") == ["captions", "labels"]
    assert completed("headrace pipeline inspect l", location="bank") == ["labels"]
    assert completed("headrace dead-letters list c", location="bank") == ["captions"]
    assert completed("headrace pipeline gc x", location="nowhere") == []
    assert not (here / "nowhere").exists()

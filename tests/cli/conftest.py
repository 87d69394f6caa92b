"""Commands run in this process through the program's own entry, in a directory of their own."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner, Result

from headrace.cli import app
from tests.cli.completed_run import CompletedRun, run_once

Run = Callable[..., Result]
Ok = Callable[..., str]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory that commands run in: their workspace is `headrace-data` in it."""
    _enter(tmp_path, monkeypatch)
    return tmp_path


def _enter(directory: Path, patch: pytest.MonkeyPatch) -> None:
    patch.chdir(directory)
    for name in ("HEADRACE_WORKSPACE", "HEADRACE_TOKEN", "HEADRACE_TLS_ROOT", "NO_COLOR"):
        patch.delenv(name, raising=False)


@pytest.fixture
def run() -> Run:
    """Runs a command, however it ends."""

    def run_command(*arguments: str, input: str | bytes = "") -> Result:
        result = CliRunner().invoke(app, arguments, input=input, catch_exceptions=False)
        assert "Traceback" not in result.stderr
        return result

    return run_command


@pytest.fixture
def ok(run: Run) -> Ok:
    """Runs a command that must succeed and say nothing on stderr; returns its stdout."""

    def run_command(*arguments: str, input: str | bytes = "") -> str:
        result = run(*arguments, input=input)
        assert (result.exit_code, result.stderr) == (0, ""), result.stderr
        return result.stdout

    return run_command


@pytest.fixture
def bank(here: Path, filled_bank: Path) -> None:
    """Two collections and one transaction over both."""
    shutil.copytree(filled_bank, here, dirs_exist_ok=True)


@pytest.fixture(scope="session")
def filled_bank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a workspace that nobody has open: tests copy it, which is faster."""
    directory = tmp_path_factory.mktemp("bank")
    with pytest.MonkeyPatch.context() as patch:
        _enter(directory, patch)
        Path("debits.ndjson").write_text(
            '{"account":"ann","cents":-500,"region":"eu"}\n'
            '{"account":"bob","cents":-7,"region":"us"}\n'
        )
        Path("credits.ndjson").write_text('{"account":"cay","cents":507}\n')
        for command in (
            ("collections", "create", "bank/debits", "account string, cents long, region string",
             "--key", "account", "--partition-by", "region"),
            ("collections", "create", "bank/credits", "account string, cents long",
             "--key", "account", "--journals", "2"),
            ("publish", "bank/debits=debits.ndjson", "bank/credits=credits.ndjson"),
        ):  # fmt: skip
            result = CliRunner().invoke(app, command, catch_exceptions=False)
            assert (result.exit_code, result.stderr) == (0, ""), result.stderr
    return directory


@pytest.fixture(scope="module")
def completed_run(tmp_path_factory: pytest.TempPathFactory) -> CompletedRun:
    """A run of tasks on Spark, which the tests of one file look at."""
    return run_once(tmp_path_factory.mktemp("completed_run"))


def rows(ndjson: str) -> list[dict[str, Any]]:
    return msgspec.json.Decoder(dict[str, Any]).decode_lines(ndjson)

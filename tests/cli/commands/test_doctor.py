from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.cli.conftest import Ok, Run
from tests.cli.headrace_process import Running

JAVA = "#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n"


@pytest.fixture(autouse=True)
def java(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A JAVA_HOME whose java says that it is 17."""
    program = here / "jdk" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(JAVA.format(version="17.0.2"))
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(here / "jdk"))
    return program


def checks(stdout: str) -> dict[str, dict[str, str]]:
    return {each["name"]: each for each in json.loads(stdout)}


def test_a_healthy_machine_and_workspace_pass_every_check(ok: Ok, bank: None) -> None:
    found = checks(ok("doctor", "--json"))
    assert {"python", "java", "pyarrow", "obstore", "disk space", "disk sync"} <= found.keys()
    assert {each["status"] for each in found.values()} <= {"ok", "warn"}
    assert found["java"]["found"].startswith("17.0.2 (")
    assert found["workspace"]["found"].endswith("headrace-data, format 1")
    assert found["owner"]["found"] == "no process owns it now; 2 collections"


def test_people_get_a_line_for_each_check(ok: Ok) -> None:
    lines = ok("doctor").splitlines()
    assert any(line.startswith("ok") and " python " in line for line in lines)
    assert not any(" workspace " in line for line in lines)


def test_nothing_is_left_behind_and_no_workspace_is_made(ok: Ok, here: Path) -> None:
    before = sorted(here.rglob("*"))
    ok("doctor")
    assert sorted(here.rglob("*")) == before


@pytest.mark.long
def test_an_owner_that_serves_is_named(ok: Ok, bank: None) -> None:
    with Running("serve", "--json") as serving:
        said = json.loads(serving.line())
        there = f"process {serving.process.pid} at {said['address']}"
        found = checks(ok("doctor", "--json"))
        assert found["owner"]["found"] == f"{there} answers; 2 collections"
        by_address = ("--workspace", said["address"], "--token", said["token"])
        found = checks(ok("doctor", "--json", *by_address))
        assert found["owner"]["found"] == f"{said['address']} answers; 2 collections"
        assert "disk space" not in found
        serving.end(signal.SIGTERM)


@pytest.mark.parametrize(
    ("version", "status"),
    [("11.0.2", "fail"), ("1.8.0_292", "fail"), ("17", "ok"), ("21.0.1", "ok"), ("?", "warn")],
)
def test_java_must_be_new_enough(run: Run, java: Path, version: str, status: str) -> None:
    java.write_text(JAVA.format(version=version))
    result = run("doctor", "--json")
    assert checks(result.stdout)["java"]["status"] == status
    assert result.exit_code == (1 if status == "fail" else 0)


def test_missing_java_says_what_to_do(
    run: Run, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(here))
    result = run("doctor", "--json")
    assert result.exit_code == 1
    assert checks(result.stdout)["java"] == {
        "name": "java",
        "status": "fail",
        "found": "not found",
        "do": "install Java 17 or newer, or set JAVA_HOME to one; Spark needs it",
    }


def test_a_java_that_does_not_run_is_reported(run: Run, java: Path) -> None:
    java.write_text("#!/bin/sh\nexit 3\n")
    assert "does not run" in checks(run("doctor", "--json").stdout)["java"]["found"]


@pytest.mark.parametrize(
    ("contents", "found"),
    [
        (None, "broken is not a workspace"),
        ('{"format": 99}', "has format 99, and this Headrace knows up to 1"),
        ("garbage", "workspace.json cannot be read"),
    ],
)
def test_a_broken_workspace_fails(run: Run, here: Path, contents: str | None, found: str) -> None:
    (here / "broken").mkdir()
    if contents:
        (here / "broken" / "workspace.json").write_text(contents)
    result = run("doctor", "--json", "--workspace", "broken")
    check = checks(result.stdout)["workspace"]
    assert (result.exit_code, check["status"]) == (1, "fail")
    assert found in check["found"]
    assert check["do"]


def test_an_address_where_nobody_answers_fails(run: Run) -> None:
    result = run("doctor", "--json", "--workspace", "grpc://127.0.0.1:1")
    assert result.exit_code == 1
    assert "cannot be reached" in checks(result.stdout)["workspace"]["found"]

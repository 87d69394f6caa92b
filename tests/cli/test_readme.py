"""The README's commands are run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.testing.crash import eventually
from headrace.testing.paid_server import PaidServer
from tests.cli.headrace_process import ALSO, SPARK_S

pytestmark = [pytest.mark.spark, pytest.mark.crash]

PROJECT = Path(__file__).parents[2]
README = PROJECT / "README.md"
_SPARK_STARTS = 3
_KEPT = ("JAVA_HOME", "SPARK_HOME", "SPARK_CONF_DIR", "SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS")
"""Where Java is, and what makes Spark start quickly."""


def block(holds: str) -> str:
    """The one block of code that holds this text."""
    blocks = re.findall(r"^```\w*\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    [found] = [each for each in blocks if holds in each]
    return str(found)


def test_the_first_example_works_as_it_stands_from_python_and_a_shell(here: Path) -> None:
    """In one workspace; a second run applies what is new."""
    (here / "bank.py").write_text(block("@hr.materialization"))
    (here / ".venv").symlink_to(sys.prefix)
    done = run_in_shell(block("headrace publish"), timeout_s=_SPARK_STARTS * SPARK_S)
    shown = [eval(line) for line in done.stdout.splitlines() if line.startswith("[{")]
    cents = [sorted(row["cents"] for row in rows) for rows in shown]
    assert cents == [[-500, 500], [-500, -500, 500, 500]]
    assert done.stdout.count('{"account":"ann","cents":-7}\n') == 2
    assert done.stdout.count('{"account":"ann","cents":-500}\n') == 4
    assert re.search(r"^ok +workspace ", done.stdout, re.MULTILINE)
    applied = hr.parquet("movements").table()["cents"].to_pylist()
    assert sorted(applied) == [-500, -500, -7, 500, 500]
    assert left_in(here) <= ignored()
    assert "/headrace-data/" in ignored()  # where the commands work if they are not told


def test_the_paid_example_is_killed_and_pays_for_each_row_once(here: Path) -> None:
    """As it stands, but for the port, and with the kill that its comment allows."""
    (here / ".venv").symlink_to(sys.prefix)
    bill = here / "calls.ndjson"
    with PaidServer(bill, "--honour-keys", "--delay-ms=50") as server:
        port = server.url.rpartition(":")[2]
        (here / "describe.py").write_text(block("hr.openai_chat").replace("8900", port))
        server.ask_faults(*[""] * 19, "hang_after")  # it is not done before it is killed
        with subprocess.Popen([sys.executable, "describe.py"], env=environment()) as killed:
            eventually(lambda: server.paid().total() >= 20, SPARK_S, "some calls")
            killed.kill()
        assert server.paid().total() < 100
    commands = block("paid_server").replace("8900", port)
    done = run_in_shell(f"source .venv/bin/activate\n{commands}", timeout_s=SPARK_S)
    said = [line for line in done.stdout.splitlines() if not line.startswith("http:")]
    assert said == ["done: 100 rows for 0.000914 dollars"] * 2 + ["100 calls.ndjson"]
    assert left_in(here) <= ignored()


def environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return {"PATH": "/usr/bin:/bin", "TMPDIR": os.environ["TMPDIR"], **ALSO, **kept}


def run_in_shell(commands: str, *, timeout_s: float) -> Any:
    done = subprocess.run(
        ["bash", "-euc", commands],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def left_in(here: Path) -> set[str]:
    """What the commands leave, as .gitignore names it."""
    ours = {".venv", "bank.py", "describe.py", "__pycache__"}
    left = [each for each in here.iterdir() if each.name not in ours]
    return {f"/{each.name}/" if each.is_dir() else f"/{each.name}" for each in left}


def ignored() -> set[str]:
    return set((PROJECT / ".gitignore").read_text().splitlines())

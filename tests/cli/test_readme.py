"""The README's commands are run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import headrace as hr
from tests.cli.headrace_process import ALSO, SPARK_S

pytestmark = pytest.mark.spark

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


@pytest.mark.timeout(_SPARK_STARTS * SPARK_S + 60)
def test_the_first_example_works_as_it_stands_from_python_and_a_shell(here: Path) -> None:
    """In one workspace; a second run applies what is new."""
    (here / "bank.py").write_text(block("import headrace as hr"))
    (here / ".venv").symlink_to(sys.prefix)
    environment = {"PATH": "/usr/bin:/bin", "TMPDIR": os.environ["TMPDIR"], **ALSO}
    environment |= {name: os.environ[name] for name in _KEPT if name in os.environ}
    done = subprocess.run(
        ["bash", "-euc", block("headrace publish")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=_SPARK_STARTS * SPARK_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown = [eval(line) for line in done.stdout.splitlines() if line.startswith("[{")]
    cents = [sorted(row["cents"] for row in rows) for rows in shown]
    assert cents == [[-500, 500], [-500, -500, 500, 500]]
    assert done.stdout.count('{"account":"ann","cents":-7}\n') == 2
    assert done.stdout.count('{"account":"ann","cents":-500}\n') == 4
    assert re.search(r"^ok +workspace ", done.stdout, re.MULTILINE)
    applied = hr.parquet("movements").table()["cents"].to_pylist()
    assert sorted(applied) == [-500, -500, -7, 500, 500]
    left = {each.name for each in here.iterdir()} - {".venv", "bank.py", "__pycache__"}
    ignored = (PROJECT / ".gitignore").read_text().splitlines()
    assert {f"/{name}/" for name in left} <= set(ignored)
    assert "/headrace-data/" in ignored  # where the commands work if they are not told

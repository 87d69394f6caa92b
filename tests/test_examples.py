"""The examples run as they are."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name: str, *arguments: str, expected: int = 0) -> str:
    """Run an example in a process of its own, and return what it printed."""
    ended = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert ended.returncode == expected, ended.stderr
    return ended.stdout + ended.stderr


def test_a_paid_service_is_paid_once_for_each_row(tmp_path: Path) -> None:
    arguments = ("--directory", str(tmp_path / "data"), "--rows", "40")
    first = run("paid_api.py", *arguments)
    assert "40 rows in this run: 40 calls made, 0 avoided, 0 rows given up" in first
    assert "the server was paid for 40 calls, 0 of them repeated" in first
    again = run("paid_api.py", *arguments)
    assert "0 rows in this run: 0 calls made" in again
    assert "40 rows in all\nthe server was paid for 40 calls, 0 of them repeated" in again


def test_a_model_runs_on_what_there_is(tmp_path: Path) -> None:
    arguments = ("--directory", str(tmp_path / "data"), "--images", "300")
    if importlib.util.find_spec("torch") is None:
        said = run("gpu_stage.py", *arguments, expected=1)
        assert said == (
            "gpu_stage.py needs PyTorch, which is not installed; run `pip install torch`\n"
        )
    else:
        assert "300 images labelled on " in run("gpu_stage.py", *arguments)

"""`headrace bench recovery`, with the strikes against the owner under a task on Spark."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.cli.headrace_process import HEADRACE

pytestmark = pytest.mark.crash


@pytest.mark.deep
def test_a_task_goes_on_after_an_owner_that_was_killed_or_stopped(here: Path) -> None:
    done = subprocess.run(
        [HEADRACE, "bench", "recovery", "--documents", "1000", "--strikes", "1", "--json"],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for key in ("owner_killed_s", "owner_stopped_s"):
        assert 0 < found[key] == found[f"{key}_max"]
    assert list(here.iterdir()) == []

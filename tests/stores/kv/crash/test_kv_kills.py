"""A store holds whole batches, and all that are durable, wherever its process is killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.testing.crash import chosen_seed


# proves G23
@pytest.mark.parametrize("backend", ["lmdb", "slatedb"])
@pytest.mark.parametrize("rounds", [12, pytest.param(400, marks=pytest.mark.deep)])
def test_killed_processes_leave_whole_batches(tmp_path: Path, backend: str, rounds: int) -> None:
    command = [
        *(sys.executable, "-m", "tests.stores.kv.crash.kv_writer"),
        *(backend, str(tmp_path / "store"), str(chosen_seed()), str(rounds)),
    ]
    run = subprocess.run(command, capture_output=True, text=True, timeout=1700, check=False)
    print(run.stdout, run.stderr)
    assert run.returncode == 0
    assert int(run.stdout.split()[2]) > 2 * rounds, "most processes wrote before they died"

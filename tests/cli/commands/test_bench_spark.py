"""`headrace bench spark`, at its smallest size."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.cli.headrace_process import HEADRACE

pytestmark = pytest.mark.spark


@pytest.mark.deep
def test_it_measures_its_yardsticks_in_the_same_run(here: Path) -> None:
    size = ("--mib", "2", "--journals", "10", "--triggers", "1")
    done = subprocess.run(
        [HEADRACE, "bench", "spark", *size, "--json"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    rates = {"docs_per_s", "source_limit_docs_per_s", "rows_docs_per_s", "parquet_docs_per_s"}
    ratios = {"ratio_to_source_limit", "ratio_to_rows", "trigger_ms", "trivial_trigger_ms"}
    assert all(found[key] > 0 for key in rates | ratios)
    assert found["overhead_ms"] == found["trigger_ms"] - found["trivial_trigger_ms"]
    assert 1 <= found["cores_of_spark"] <= found["cpus"]
    assert 1 <= found["cores_of_members"] <= found["cpus"]
    assert list(here.iterdir()) == []

"""docs/ingest.md: its example prints what it says, and its tests exist."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

from headrace.ingest.ingest_metrics import IngestMetrics

PROJECT = Path(__file__).parent.parent.parent
PAGE = (PROJECT / "docs" / "ingest.md").read_text()


def test_the_example_prints_what_the_page_says(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    (printed,) = re.findall(r"It prints\n\n```\n(.*?)```", PAGE, flags=re.DOTALL)
    ended = subprocess.run(
        [sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert ended.stdout == printed


def test_every_test_that_the_page_names_exists() -> None:
    named = re.findall(r"`(test_\w+)` \|", PAGE)
    assert len(named) == 8
    text = (PROJECT / "tests" / "ingest" / "test_known_defects.py").read_text()
    assert set(named) <= set(re.findall(r"def (test_\w+)\(", text))


def test_every_metric_is_on_the_page() -> None:
    table = PAGE.partition("### Which metrics?")[2].partition("## Limits")[0]
    named = set(re.findall(r"`(\w+)`", table))
    assert {field.name for field in fields(IngestMetrics)} <= named

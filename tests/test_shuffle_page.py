"""`docs/shuffle-tests.md` says which module and which test hold each statement: they must exist."""

from __future__ import annotations

import re
from pathlib import Path

PROJECT = Path(__file__).parent.parent
PAGE = (PROJECT / "docs" / "shuffle-tests.md").read_text()
ROWS = [line.split(" | ") for line in PAGE.splitlines() if line.startswith("| ")]


def test_every_test_it_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    files = (PROJECT / "tests").rglob("test_*.py")
    found = {name for path in files for name in re.findall(r"def (test_\w+)\(", path.read_text())}
    assert len(named) > 50
    assert named <= found, f"no such test: {sorted(named - found)}"


def test_every_module_it_names_exists() -> None:
    modules = {name for row in ROWS for name in re.findall(r"`([\w/]+\.py|\w+/)`", row[1])}
    source = PROJECT / "src" / "headrace"
    missing = [
        name
        for name in modules
        if not (source / "shuffle" / name).exists() and not (source / name).exists()
    ]
    assert len(modules) > 10
    assert not missing

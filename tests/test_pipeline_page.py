"""`docs/pipeline-tests.md` says which test holds each row of the test plan: they must exist."""

from __future__ import annotations

import re
from pathlib import Path

PROJECT = Path(__file__).parent.parent
PAGE = (PROJECT / "docs" / "pipeline-tests.md").read_text()
_NAMED = re.compile(r"`(test_\w+)`")
_FILE = re.compile(r"`((?:tests|src)/[\w/]+\.py)`")


def defined_in(path: Path) -> set[str]:
    return set(re.findall(r"def (test_\w+)\(", path.read_text()))


def test_every_test_it_names_exists() -> None:
    files = [*(PROJECT / "tests").rglob("test_*.py"), *(PROJECT / "src").rglob("*_conformance.py")]
    found = {name for path in files for name in defined_in(path)}
    named = set(_NAMED.findall(PAGE))
    assert len(named) > 40
    assert named <= found, f"no such test: {sorted(named - found)}"


def test_every_test_is_in_the_files_beside_it() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and _FILE.search(line)]
    assert len(rows) > 15
    for row in rows:
        (name,) = _NAMED.findall(row)
        for file in _FILE.findall(row):
            assert name in defined_in(PROJECT / file), f"{name} is not in {file}"

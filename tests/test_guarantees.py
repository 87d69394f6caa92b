"""docs/guarantees.md and the tests name each other."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

PROJECT = Path(__file__).parent.parent
PAGE = PROJECT / "docs" / "guarantees.md"
PROVES = re.compile(r"# proves (G\d+(?:, G\d+)*)")
GUARANTEES = [f"G{number}" for number in range(1, 31)]


def proofs() -> dict[str, set[str]]:
    """The test files that say they prove each guarantee."""
    found = defaultdict(set)
    for path in PROJECT.joinpath("tests").rglob("test_*.py"):
        for names in PROVES.findall(path.read_text()):
            for name in names.split(", "):
                found[name].add(path.relative_to(PROJECT).as_posix())
    return found


def promised() -> dict[str, set[str]]:
    """The test files that the page names for each guarantee that is built."""
    sections = re.split(
        r"^### (G\d+) ", PAGE.read_text().partition("## Not built yet")[0], flags=re.M
    )
    return {
        name: set(re.findall(r"`(tests/[\w/]+\.py)`", text))
        for name, text in zip(sections[1::2], sections[2::2], strict=True)
    }


def test_every_guarantee_is_listed_once() -> None:
    listed = re.findall(r"^(?:### |\| )(G\d+) ", PAGE.read_text(), flags=re.M)
    assert sorted(listed, key=GUARANTEES.index) == GUARANTEES


def test_what_is_promised_is_proved_and_the_page_says_where() -> None:
    proved = proofs()
    assert promised() == {name: proved[name] for name in promised()}
    assert all(promised().values())
    assert set(proved) <= set(GUARANTEES)

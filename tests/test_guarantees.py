"""docs/guarantees.md states the guarantees; tests prove them; docs/guarantee-tests.md says which.

A test names the guarantees it proves in a comment (`# proves G3, G7`). After such a comment or its
file has moved, `pytest tests/test_guarantees.py --rewrite` writes docs/guarantee-tests.md again.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent.parent
PROMISES = PROJECT / "docs" / "guarantees.md"
PROOFS = PROJECT / "docs" / "guarantee-tests.md"
PROVES = re.compile(r"# proves (G\d+(?:, G\d+)*)")
GUARANTEES = [f"G{number}" for number in range(1, 31)]
INTRODUCTION = """\
# The tests behind each guarantee

[guarantees.md](guarantees.md) says what each guarantee promises. Its tests are in these files,
marked with a comment such as `# proves G3`. `pytest tests/test_guarantees.py --rewrite` writes this
page.
"""


def proofs() -> dict[str, list[str]]:
    """Return, for each guarantee, the test files that say they prove it."""
    found = defaultdict(set)
    for path in PROJECT.joinpath("tests").rglob("test_*.py"):
        for names in PROVES.findall(path.read_text()):
            for name in names.split(", "):
                found[name].add(path.relative_to(PROJECT).as_posix())
    return {name: sorted(paths) for name, paths in found.items()}


def promises() -> dict[str, str]:
    """Return the headline of each guarantee, in the order of the page."""
    return dict(re.findall(r"^### (G\d+) (.*)$", PROMISES.read_text(), flags=re.M))


def proofs_page() -> str:
    proved = proofs()
    sections = [
        f"## {name} {promise}\n\n" + "".join(f"- `{path}`\n" for path in proved[name])
        for name, promise in promises().items()
    ]
    return "\n".join([INTRODUCTION, *sections])


def test_every_guarantee_is_listed_once() -> None:
    listed = re.findall(r"^### (G\d+) ", PROMISES.read_text(), flags=re.M)
    assert sorted(listed, key=GUARANTEES.index) == GUARANTEES


def test_every_guarantee_has_a_test_and_no_test_proves_any_other() -> None:
    assert set(promises()) == set(proofs())


def test_the_page_of_proofs_names_the_tests_of_each_guarantee(
    request: pytest.FixtureRequest,
) -> None:
    if request.config.getoption("--rewrite"):
        PROOFS.write_text(proofs_page())
    hint = "run `pytest tests/test_guarantees.py --rewrite`"
    assert PROOFS.read_text() == proofs_page(), hint

"""docs/stores.md: its examples print what it says, and its commands run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.stores.vectors.filters import from_json

PAGE = (Path(__file__).parent.parent.parent / "docs" / "stores.md").read_text()
EXAMPLES = re.findall(
    r"```python\n(import.*?)```\n\nIt prints\n\n```\n(.*?)```", PAGE, flags=re.DOTALL
)
BIN = str(Path(sys.executable).parent)


def test_two_examples_run() -> None:
    assert len(EXAMPLES) == 2


@pytest.mark.parametrize(("example", "printed"), EXAMPLES)
def test_an_example_prints_what_the_page_says(example: str, printed: str, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert ended.stdout == printed


def test_its_filters_can_be_read() -> None:
    """Also the words that a row of the table names beside its example."""
    rows = re.findall(r'^\| `(\{"field".*?\})` \|(.*)$', PAGE, flags=re.MULTILINE)
    assert len(rows) == 3
    for example, meaning in rows:
        from_json(json.loads(example))
        for word in re.findall(r"`(\w+)`", meaning.replace("`None`", "")):
            from_json({"field": "size", word: 3})


@pytest.mark.long
def test_its_commands_run_one_after_the_other(tmp_path: Path) -> None:
    (commands,) = re.findall(r"## The command line\n\n```\n(.*?)```", PAGE, flags=re.DOTALL)
    ended = subprocess.run(
        ["bash", "-euc", "set -o pipefail\n" + commands],
        cwd=tmp_path,
        env=os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "1 row stored in ./visits" in ended.stdout
    assert re.search(r'^visits\{page="/"\} +1$', ended.stdout, flags=re.MULTILINE)
    assert re.search(r"^a +en +", ended.stdout, flags=re.MULTILINE)
    assert ended.stderr == ""

"""The first example of docs/pipelines.md is run as it stands."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.cli.headrace_process import ALSO, HEADRACE

pytestmark = pytest.mark.crash

PAGE = Path(__file__).parents[2] / "docs" / "pipelines.md"
PATIENCE_S = 240.0
ROWS = 5000


def blocks() -> list[str]:
    found = re.findall(r"^```\w*\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return [str(each) for each in found]


@pytest.mark.timeout(PATIENCE_S + 60)
def test_the_first_example_is_killed_and_goes_on(here: Path) -> None:
    program, commands = blocks()[:2]
    (here / "captions.py").write_text(program)
    path = f"{Path(HEADRACE).parent}:/usr/bin:/bin"
    done = subprocess.run(
        ["bash", "-uc", commands],
        env=os.environ | ALSO | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "at most 5" in done.stdout
    assert re.search(r"^captions: done; caption 50/50, sink 50/50 units; ", done.stdout, re.M)
    # A function may get the rows of one unit again if it was killed in the middle.
    captions = (here / "captions.txt").read_text().splitlines()
    assert len(set(captions)) == ROWS

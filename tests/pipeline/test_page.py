"""The examples of docs/pipelines.md run as they stand, one after the other in one program."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.testing.paid_server import PaidServer

pytestmark = pytest.mark.crash  # it starts processes

PAGE = Path(__file__).parents[2] / "docs" / "pipelines.md"
SECTIONS = (
    "Operators",
    "Group, join, distinct",
    "HTTP services",
    "Sources and units",
    "Sinks",
    "Errors and dead letters",
    "Changes",
    "Several sources and branches",
)
BEGIN = """
import headrace as hr

ws = hr.open("workspace")


def load_model():
    return lambda texts: [[float(len(text))] for text in texts]


"""
EXPECTED = """\
[{'word': 'cup'}, {'word': 'for'}, {'word': '4.00'}, {'word': 'tray'}, {'word': 'for'}, \
{'word': '12.00'}]
[{'country': 'de', 'orders': 3, 'cents': 2400}, {'country': 'fr', 'orders': 2, 'cents': 3500}]
0.006
['product', 'cents', 'answer', 'embedding']
1
[('ValueError: cup is broken', {'product': 'cup', 'cents': 400})]
3
job 'labels' is not as it was: the operator of stage 'label' has changed; run with \
on_change='resume' (keep what is done, go on with the change), 'recompute' (do what changed and \
all below it again) or 'restart' (do everything again)
6 6
"""


def blocks(section: str) -> list[str]:
    [text] = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.M | re.S)
    return re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)


def test_the_examples_of_the_page_run_as_they_stand(tmp_path: Path) -> None:
    """But for the addresses of services, which are that of a server on this machine."""
    with PaidServer(tmp_path / "bill", "--honour-keys") as server:
        program = BEGIN + "\n".join(block for section in SECTIONS for block in blocks(section))
        program = program.replace("https://api.example.com", server.url)
        program = program.replace("model=", f'base_url="{server.url}/v1", model=')
        (tmp_path / "page.py").write_text(program)
        done = subprocess.run(
            [sys.executable, "page.py"],
            cwd=tmp_path,
            env={**os.environ, "EXAMPLE_TOKEN": "secret"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == EXPECTED

"""The README's commands are run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_the_shell_block_works_as_it_stands(here: Path) -> None:
    blocks = re.findall(r"^```\w*\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    [block] = [each for each in blocks if "headrace publish" in each]
    (here / ".venv").symlink_to(sys.prefix)
    path = {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        ["bash", "-euc", block], env=path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stderr == ""
    assert '{"account":"ann","cents":-500}\n' in done.stdout
    assert re.search(r"^ok +workspace ", done.stdout, re.MULTILINE)


def test_the_first_example_works_as_it_stands(here: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    (here / "bank.py").write_text(blocks[0])
    done = subprocess.run(
        [sys.executable, "bank.py"], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = eval(done.stdout.splitlines()[-1])
    assert sorted(row["cents"] for row in rows) == [-500, 500]

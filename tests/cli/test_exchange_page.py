"""The examples of docs/exchange.md run as they stand; the first one is killed and goes on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.testing.crash import eventually
from tests.cli.headrace_process import ALSO, HEADRACE

pytestmark = pytest.mark.crash

PAGE = Path(__file__).parents[2] / "docs" / "exchange.md"
PATIENCE_S = 120.0
TASKS, REDUCE_TASKS = 20, 4
REVENUE = (
    "[{'country': 'Austria', 'orders': 8568, 'revenue': 29988},"
    " {'country': 'Belgium', 'orders': 8572, 'revenue': 29992}]"
)
OTHERS = """\
[{'order': 1, 'city': 'Bonn'}, {'order': 2, 'city': None}, {'order': 3, 'city': 'Bonn'}]
2
[3, 3, 3]
[{'lang': 'de', 'n': 1}]
query 1, stage 0, map task 7, attempt 1
"""


def blocks(language: str = "") -> list[str]:
    found = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return [str(each) for each in found]


def run(*command: str) -> str:
    done = subprocess.run(
        command,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def environment() -> dict[str, str]:
    return os.environ | ALSO | {"PATH": f"{Path(HEADRACE).parent}:/usr/bin:/bin"}


@pytest.mark.timeout(PATIENCE_S * 4)
def test_the_first_example_is_killed_and_computes_only_what_is_missing(here: Path) -> None:
    # proves G21
    program, orders = blocks("python")[:2]
    commands = next(each for each in blocks() if "python orders.py" in each)
    # Files that are written again would be other files.
    make, _, commands = commands.partition("\n")
    (here / "revenue.py").write_text(program)
    (here / "orders.py").write_text(orders)
    run("bash", "-euc", make)
    with subprocess.Popen([sys.executable, "revenue.py"], env=environment()) as killed:
        eventually(lambda: published(here) >= 2, PATIENCE_S, "published output")
        killed.kill()
    kept = published(here)
    said = run("bash", "-euc", commands)
    assert said.startswith("query revenue\n\nstage 0: a task for each unit\n")
    [first, second] = re.findall(r"^revenue: 24 tasks, (\d+) computed, (\d+) reused$", said, re.M)
    assert (int(first[0]), int(first[1])) == (TASKS + REDUCE_TASKS - kept, kept)
    assert second == ("0", "24")
    assert said.count(f"{REVENUE}\n") == 2
    assert re.search(r"^revenue +\d+ +2 +24 +24 +24 ", said, re.M), "one attempt of each task"


def published(here: Path) -> int:
    return len(list(here.glob("shop/objects/shuffle/*/*/published/*")))


def test_the_other_examples_run_as_they_stand(here: Path) -> None:
    program = "\n".join(blocks("python")[2:])
    (here / "page.py").write_text(program)
    assert run(sys.executable, "page.py") == OTHERS
    assert [each.read_text() for each in here.glob("*.txt")] == ["1\n2\n3\n"]


def test_the_commands_of_the_page_exist(here: Path) -> None:
    named = set(re.findall(r"headrace exchange (\w+)", PAGE.read_text()))
    listed = re.findall(r"^  (\w+) {2,}\S", run(HEADRACE, "exchange", "--help"), re.M)
    assert named == set(listed)

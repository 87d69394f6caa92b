"""Two tasks that `headrace run` ran once on Spark; one reads what the other wrote."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import headrace as hr
from tests.cli.headrace_process import SPARK_S, headrace

TRANSFERS = 20

TASKS = """
import headrace as hr

ws = hr.open("bank")

@hr.derivation(ws, sources=["debits", "credits"], to="moves", shards=1)
def moves(cut):
    return cut.debits.unionByName(cut.credits)

@hr.materialization(ws, sources=["moves"], sink=hr.parquet("kept"), shards=1)
def kept(cut):
    return cut.moves

if __name__ == "__main__":
    raise SystemExit("this is not for `headrace run`")
"""


class CompletedRun(NamedTuple):
    directory: Path
    code: int
    stdout: str
    stderr: str

    @property
    def workspace(self) -> str:
        return str(self.directory / "bank")

    @property
    def file(self) -> Path:
        return self.directory / "tasks.py"


def transfer(directory: Path) -> None:
    """Some transfers, in a workspace that is made if there is none, beside the file with tasks."""
    with hr.open(directory / "bank") as ws:
        for name in ("debits", "credits", "moves"):
            ws.collection(name, "account string, cents long", key="account", journals=2)
        for number in range(TRANSFERS):
            with ws.publisher() as tx:
                tx.append("debits", [{"account": "ann", "cents": -number}])
                tx.append("credits", [{"account": "bob", "cents": number}])
    (directory / "tasks.py").write_text(TASKS)


def run_once(directory: Path) -> CompletedRun:
    transfer(directory)
    done = headrace("run", "tasks.py", "--once", cwd=directory, timeout_s=SPARK_S)
    return CompletedRun(directory, done.returncode, done.stdout.decode(), done.stderr.decode())

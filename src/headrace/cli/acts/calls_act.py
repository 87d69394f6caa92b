"""The paid calls of `headrace demo`: a pipeline asks a server about every row, and is killed.

    python -m headrace.cli.acts.calls_act FOLDER URL ROWS

is the program that the demo starts, kills and starts again. It runs the pipeline and knows nothing
of the kill. The server is a process of its own, and its bill is what the demo trusts.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, Self

import httpx
import pyarrow as pa

import headrace as hr
from headrace.cli.acts.contract import DemoAct
from headrace.cli.render.task_display import TaskDisplay
from headrace.cli.render.units import counted
from headrace.errors import HeadraceError
from headrace.pipeline.ledger.ledger_store import read_totals
from headrace.pipeline.ledger.totals import StageTotals, to_money, to_nanos
from headrace.pipeline.run.job_run import ledger_directory
from headrace.pipeline.run.record import Records

PRICE = 0.01
"""What the server takes for a call, in dollars."""
_JOB = "answers"
_CALL_MS = 50
_CONCURRENCY = 4
_UNITS = 7
"""So that the kill is not between two units."""
_LOOK_AGAIN_S = 0.02
_PATIENCE_S = 120.0
"""The demo gives up if the server has got no further call for this long."""


def answers(workspace: hr.Workspace, url: str, rows: int) -> hr.Pipeline:
    """Return the pipeline: it asks the server every question, and keeps the answers."""
    ask = hr.http(
        f"{url}/ask",
        json=lambda row: {"id": row["question"]},
        parse=lambda answer: {"answer": answer["answer"]},
        cost=PRICE,
    )
    questions = pa.table({"question": [f"question {n}" for n in range(rows)]})
    return (
        hr.pipeline(_JOB, workspace)
        .source(questions, rows_per_unit=max(2, rows // _UNITS))
        .http(ask, name="ask", concurrency=_CONCURRENCY)
    )


class ServerBill(NamedTuple):
    """What the server says."""

    calls: int = 0
    """Calls that it got."""
    calls_twice: int = 0
    """Calls that it got for a question that it had been asked before."""
    paid: int = 0
    """Calls that it charged for."""
    paid_twice: int = 0
    """Calls that it charged for again."""


class CallsOutcome(NamedTuple):
    """What the pipeline did, by the bill of the server, and what must not happen."""

    rows: int
    first: ServerBill
    """When the killed run had ended."""
    last: ServerBill
    """At the end."""
    kills: int
    in_doubt: int
    """Calls that the ledger could not know the outcome of when the pipeline was killed."""
    rows_out: int
    lost: int
    duplicates: int
    cost: float
    """By the bill of the server."""
    ledger_cost: float
    seconds: float

    @property
    def wrong(self) -> list[str]:
        """What did not hold, in words."""
        found = {
            f"{counted(self.lost, 'row')} lost": self.lost,
            f"{counted(self.duplicates, 'row')} twice": self.duplicates,
            f"{counted(self.last.paid_twice, 'call')} paid twice": self.last.paid_twice,
            f"{counted(self.last.calls_twice, 'call')} made twice with {self.in_doubt} in doubt": (
                self.last.calls_twice > self.in_doubt
            ),
            f"a bill of ${self.cost:.2f} and a ledger of ${self.ledger_cost:.2f}": (
                self.cost != self.ledger_cost
            ),
            "the pipeline was done before it was killed": not self.kills,
        }
        return [text for text, is_wrong in found.items() if is_wrong]

    @property
    def is_good(self) -> bool:
        return not self.wrong

    def fields(self) -> dict[str, object]:
        """Return what is printed, by its name."""
        return {
            "rows": f"{self.rows:,}",
            "run 1, killed: calls made": f"{self.first.calls:,}",
            "run 2, to the end: calls made": f"{self.last.calls - self.first.calls:,}",
            "calls in doubt when it was killed": self.in_doubt,
            "of them made twice, with the same key": self.last.calls_twice,
            "calls paid": f"{self.last.paid:,}",
            "calls paid twice": self.last.paid_twice,
            "rows in the output": f"{self.rows_out:,}",
            "rows lost": self.lost,
            "rows twice": self.duplicates,
            "bill of the server": f"${self.cost:.2f}",
            "cost by the ledger": f"${self.ledger_cost:.2f}",
            "time": f"{self.seconds:.1f} s",
        }

    def verdict(self) -> str:
        """Return the line that says whether the guarantees held."""
        if self.is_good:
            return (
                f"The paid calls held: {self.rows:,} rows, each there once and paid once,"
                f" through {counted(self.kills, 'kill')}."
            )
        return f"The paid calls did not hold: {', '.join(self.wrong)}. Please report this."


class CallsAct(DemoAct):
    """Runs the pipeline until the server was paid for half of the rows, kills it, runs it again."""

    def __init__(self, scratch: Path, rows: int, display: TaskDisplay) -> None:
        self._scratch = scratch
        self._rows = rows
        self._display = display
        self._kills = 0

    def run(self) -> CallsOutcome:
        begin = time.perf_counter()
        display = self._display
        display.note(
            f"a pipeline asks a server {self._rows:,} questions; the server takes ${PRICE:.2f} and"
            f" {_CALL_MS} ms for each, and charges once for an idempotency key"
        )
        half = max(1, self._rows // 2)
        with _CallServer(self._scratch / "bill.ndjson") as server:
            # The worst moment to die: this call is paid, and its answer never comes.
            server.keep_answer_back(half)
            with _Driver(self._scratch, server.url, self._rows) as driver:
                self._wait(driver, server, until=lambda bill: bill.paid >= half)
                self._kills = int(driver.kill())
                if self._kills:
                    display.note(f"the pipeline is killed half-way: kill -9 {driver.pid}")
            first = server.bill()
            display.note(f"the server was paid for {first.paid:,} calls; the program runs again")
            with _Driver(self._scratch, server.url, self._rows) as driver:
                self._wait(driver, server)
                driver.check()
            last = server.bill()
        found, totals = self._results()
        wanted = {(f"question {n}", f"answer to question {n}") for n in range(self._rows)}
        return CallsOutcome(
            rows=self._rows,
            first=first,
            last=last,
            kills=self._kills,
            in_doubt=totals.doubts,
            rows_out=found.total(),
            lost=len(wanted - found.keys()),
            duplicates=found.total() - len(found),
            cost=to_money(last.paid * to_nanos(PRICE, "the price")),
            ledger_cost=totals.cost,
            seconds=time.perf_counter() - begin,
        )

    def _wait(
        self,
        driver: _Driver,
        server: _CallServer,
        until: Callable[[ServerBill], bool] = lambda bill: False,
    ) -> None:
        """Wait for what the bill of the server is to show, or for the end of the driver."""
        seen = ServerBill()
        deadline = time.monotonic() + _PATIENCE_S
        while driver.is_alive:
            bill = server.bill()
            self._display.status(f"{bill.paid:,} of {self._rows:,} calls are paid")
            if until(bill):
                return
            if bill != seen:
                seen, deadline = bill, time.monotonic() + _PATIENCE_S
            if time.monotonic() > deadline:
                raise HeadraceError(
                    f"the pipeline of the demo has made no call for {_PATIENCE_S:g} s",
                    do="run `headrace demo --act calls` again on a machine that is less busy",
                )
            time.sleep(_LOOK_AGAIN_S)

    def _results(self) -> tuple[Counter[tuple[str, str]], StageTotals]:
        """Return how often each row is in the output, and what the ledger says of the calls."""
        with hr.open(self._scratch / "workspace") as workspace:
            pipeline = answers(workspace, "", self._rows)
            rows = pipeline.collect().to_pylist()
            record = Records(workspace.objects, _JOB).newest()
            assert record
            path = ledger_directory(workspace, pipeline.job)
            [totals] = read_totals(path, record.generation).values()
        return Counter((row["question"], row["answer"]) for row in rows), totals


class _CallServer:
    """The server that counts, in a process of its own that ends with this one."""

    def __init__(self, bill: Path) -> None:
        announced, theirs = os.pipe()
        command = [sys.executable, "-m", "headrace.testing.paid_server", "--honour-keys"]
        command += ["--bill", str(bill), "--delay-ms", str(_CALL_MS), "--announce", str(theirs)]
        # In a session of its own, so that Ctrl-C does not reach it.
        self._process = subprocess.Popen(
            command, pass_fds=[theirs], stdin=subprocess.DEVNULL, start_new_session=True
        )
        os.close(theirs)
        with os.fdopen(announced) as pipe:
            port = pipe.readline().strip()
        if not port:
            raise HeadraceError(
                f"the server of the demo ended with code {self._process.wait()}",
                do="mend what it printed and run the demo again",
            )
        self.url = f"http://127.0.0.1:{port}"
        self._client = httpx.Client(base_url=self.url, timeout=_PATIENCE_S, trust_env=False)

    def bill(self) -> ServerBill:
        try:
            return ServerBill(**self._client.get("/bill").json())
        except httpx.HTTPError as error:
            raise HeadraceError(
                f"the server of the demo is gone: {error}", do="run the demo again"
            ) from error

    def keep_answer_back(self, call: int) -> None:
        """Let the server charge for the call of this number, from 1, and never answer it."""
        faults = [""] * (call - 1) + ["hang_after"]
        self._client.post("/faults", json={"faults": faults}).raise_for_status()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._client.close()
        self._process.kill()
        self._process.wait()


class _Driver:
    """The program that runs the pipeline, as a process."""

    def __init__(self, scratch: Path, url: str, rows: int) -> None:
        with ExitStack() as stack:
            self._said = stack.enter_context((scratch / "driver.log").open("w+"))
            self._process = subprocess.Popen(
                [sys.executable, "-m", "headrace.cli.acts.calls_act", str(scratch), url, str(rows)],
                # It ends when nobody holds the other end, so also if Ctrl-C comes while it starts.
                stdin=subprocess.PIPE,
                stderr=self._said,
                env=os.environ | {"no_proxy": "127.0.0.1"},
                start_new_session=True,
            )
            self._open = stack.pop_all()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> bool:
        """End it at once, as `kill -9` does. Return False if it had ended before."""
        was_alive = self.is_alive
        self._process.kill()
        self._process.wait()
        return was_alive

    def check(self) -> None:
        """Raise HeadraceError if it failed."""
        if code := self._process.wait():
            self._said.seek(0)
            said = self._said.read().strip().splitlines() or ["it said nothing"]
            raise HeadraceError(
                f"the pipeline of the demo ended with code {code}: {said[-1]}",
                do="mend what it names and run the demo again",
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()
        self._open.close()
        assert self._process.stdin
        self._process.stdin.close()


def main(folder: str, url: str, rows: str) -> None:
    if select.select([0], [], [], 0)[0]:
        return
    threading.Thread(target=_end_with_input, daemon=True).start()
    with hr.open(Path(folder) / "workspace") as workspace:
        answers(workspace, url, int(rows)).run()


def _end_with_input() -> None:
    os.read(0, 1)  # Not `sys.stdin`, whose lock would abort this process at its end.
    os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A job of paid calls whose process dies when a call is paid and not recorded.

python -m tests.pipeline.crash.paid_job WORKSPACE URL POLICY runs it with workers in threads.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import urllib.request
from pathlib import Path
from typing import Any

import headrace as hr
from headrace.pipeline.operators.operator import current_call
from tests.pipeline.jobs import numbers

ROWS = 24
DEADLY_ROW = 11


class Pay:
    """Pays for each row. The first process that has paid for DEADLY_ROW dies."""

    version = "1"

    def __init__(self, url: str, marker: str) -> None:
        self._url = url
        self._marker = Path(marker)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{self._url}/pay",
            json.dumps({"id": str(row["n"])}).encode(),
            {"Idempotency-Key": current_call().idempotency_key},
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            answer = json.load(response)["answer"]
        if row["n"] == DEADLY_ROW and not self._marker.exists():
            self._marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return {**row, "answer": answer}


def make(workspace: hr.Workspace, url: str, policy: str, **options: Any) -> hr.Pipeline:
    assert workspace.directory is not None
    pay = Pay(url, str(workspace.directory / "has_died"))
    pipeline = hr.pipeline("paid", workspace).source(numbers(ROWS), rows_per_unit=6)
    return pipeline.map(
        pay, name="pay", expensive=True, cost=1.0, in_doubt=policy, workers=2, **options
    )


if __name__ == "__main__":
    with hr.open(sys.argv[1]) as opened:
        make(opened, *sys.argv[2:4]).run()

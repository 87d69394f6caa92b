"""Payloads on S3, whose answers suddenly take long."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.journal.workspace import Workspace
from headrace.pipeline.master.state import JobState
from headrace.pipeline.run.job_run import JobRun
from headrace.pipeline.run.thread_runner import ThreadRunner
from headrace.storage import S3Options, open_objects
from headrace.testing.crash import eventually
from tests.pipeline.jobs import numbers
from tests.pipeline.slow_proxy import SlowProxy
from tests.s3 import BUCKET, s3_server

pytestmark = pytest.mark.long

UNITS = 400
UNREAD_MAX = 3
"""Messages that a partition of a topic on memory holds; far fewer than units."""
DELAY_S = 0.25
WAIT_S = 120.0


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Options]:
    with s3_server(tmp_path_factory.mktemp("s3")) as options:
        yield options


@dataclass
class Watch:
    """Looks at what the topic on memory holds, all the time."""

    run: JobRun
    proxy: SlowProxy
    unread_max: int = 0
    """The most messages that were unread at once."""
    ahead: list[int] = field(default_factory=list)
    """How many units the stage on memory was ahead of the last, at the end of the spike."""

    def spike(self) -> None:
        """Slow S3 down when the job is under way, until the last stage has done some units."""
        eventually(lambda: self._done("last") > UNITS // 20, WAIT_S, "a job under way")
        self.proxy.delay_s = DELAY_S
        eventually(self._is_full, WAIT_S, "a full topic")
        for _ in range(5):
            done = self._done("last")
            eventually(partial(self._has_done_more_than, done), WAIT_S, "a unit")
            self._is_full()
            self.ahead.append(self._done("shape") - self._done("last"))
        self.proxy.delay_s = 0.0

    def _has_done_more_than(self, messages: int) -> bool:
        return self._done("last") > messages

    def _is_full(self) -> bool:
        """True if what waits fills the topic, but for the partitions that two workers read."""
        inputs = self.run.inputs["last"]
        topic = inputs[0].topic
        unread = self.run.services.memory.look(
            lambda state: [
                (found := state.partition(topic, each.partition)).end - found.begin
                for each in inputs
            ]
        )
        self.unread_max = max(self.unread_max, *unread)
        return sum(unread) >= UNREAD_MAX * (len(inputs) - 2)

    def _done(self, stage: str) -> int:
        return self.run.master.look(lambda state: state.stages[stage].counts.messages)


def shape(batch: pa.RecordBatch) -> pa.Table:
    return pa.table({"n": pc.multiply(batch["n"], 2)})


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def test_s3_latency_spike(
    tmp_path: Path, server: S3Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stage before waits for the one that stores on S3: a topic on memory does not grow."""
    pq.write_table(numbers(UNITS), tmp_path / "n.parquet")
    port = urlsplit(server["endpoint"]).port
    assert port
    defaults: Any = JobState.__init__.__kwdefaults__
    monkeypatch.setitem(defaults, "unread_max", UNREAD_MAX)
    with SlowProxy(port) as proxy, hr.open(tmp_path / "data") as workspace:
        slow: S3Options = {**server, "endpoint": proxy.url}
        objects = open_objects(f"s3://{BUCKET}", **slow)
        monkeypatch.setattr(Workspace, "objects", property(lambda _: objects))
        pipeline = (
            hr.pipeline("latency", workspace)
            .source(tmp_path / "n.parquet", rows_per_unit=1)
            .map_batches(shape, name="shape")
            .map_batches(same, name="last", durable=True, workers=2)
        )
        with JobRun(workspace, pipeline.job) as run:
            watch = Watch(run, proxy)
            watching = threading.Thread(target=watch.spike)
            watching.start()
            ThreadRunner().run(run)
            watching.join()
            assert run.summary().outcome == "done"
        assert proxy.delayed > 5
        assert watch.unread_max <= UNREAD_MAX
        assert max(watch.ahead) < UNITS // 2, "it waited"
        assert sorted(pipeline.collect()["n"].to_pylist()) == [2 * n for n in range(UNITS)]

"""The stores' act of `headrace demo`: Spark fills two stores, whose process is killed.

A store shows a sample of the same series and time once, and a vector of the same id, however often
it is written. So that the act sees a micro-batch that is applied twice, every run of a micro-batch
has a name of its own, which is a label of its samples and a part of the ids of its vectors.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

import headrace as hr
from headrace.cli.acts.bakeries import (
    CLOSING_MS,
    DIMENSION,
    SALES_PER_REVIEW,
    VECTOR_COLUMNS,
    Bakeries,
    embed,
    review_vectors,
)
from headrace.cli.acts.contract import DemoAct
from headrace.cli.acts.demo_spark import DemoSpark
from headrace.cli.acts.publishing_thread import GROUPS, PublishingThread
from headrace.cli.acts.store_audit import (
    NEAREST,
    QUERY,
    START_MS,
    STEP_MS,
    WANTED_SHOP,
    WANTED_TEXT,
    RowCount,
    count_samples,
    count_vectors,
    wrong_hits,
    wrong_points,
)
from headrace.cli.acts.stores_process import StoresProcess
from headrace.cli.interruption import run_aside
from headrace.cli.render.output import print_line
from headrace.cli.render.store_display import print_chart, print_rows
from headrace.cli.render.task_display import TaskDisplay
from headrace.cli.render.units import counted
from headrace.stores.service.shared_store import SharedStore
from headrace.stores.service.shared_timeseries import SharedTimeSeries
from headrace.stores.service.shared_vectors import SharedVectors
from headrace.stores.service.store_access import create_store, open_timeseries, open_vectors
from headrace.stores.timeseries.series import SelectedSeries

if TYPE_CHECKING:
    from headrace.spark import Progress, Task

_PATIENCE_S = 120.0
"""The demo counts what is missing as lost when Spark applied nothing for this long."""
_BATCHES_BEFORE_KILL = 2
"""The demo kills the process of the stores when each task has applied so many batches with rows."""
_LAST_GATE = GROUPS - 2
"""The last group is published after the kill, so the next owner of the stores gets some of it."""


class StoresOutcome(NamedTuple):
    """What was published and applied, and what was counted that must not happen."""

    checkpoints: int
    checkpoints_after_kill: int
    kills: int
    samples: RowCount
    vectors: RowCount
    points: int
    wrong_points: int
    hits: int
    wrong_hits: int
    seconds: float

    @property
    def wrong(self) -> list[str]:
        """What did not hold, in words."""
        counts = {
            f"{counted(count, thing)} {how}": count
            for thing, rows in (("sample", self.samples), ("vector", self.vectors))
            for how, count in (("lost", rows.lost), ("twice", rows.twice), ("wrong", rows.wrong))
        }
        counts |= {
            f"{counted(self.wrong_points, 'point')} of the chart wrong": self.wrong_points,
            f"{counted(self.wrong_hits, 'review')} of the search wrong": self.wrong_hits,
            "the process of the stores ended before it was killed": not self.kills,
        }
        return [text for text, count in counts.items() if count]

    @property
    def is_good(self) -> bool:
        return not self.wrong

    def fields(self) -> dict[str, object]:
        """Return what is printed, by its name."""
        samples, vectors = self.samples, self.vectors
        return {
            "sales published": f"{samples.published:,}",
            "reviews published": f"{vectors.published:,}",
            "checkpoints of the two tasks": f"{self.checkpoints:,}",
            "of them after the kill": f"{self.checkpoints_after_kill:,}",
            "processes killed": self.kills,
            "samples lost": samples.lost,
            "samples twice": samples.twice,
            "samples wrong": samples.wrong,
            "vectors lost": vectors.lost,
            "vectors twice": vectors.twice,
            "vectors wrong": vectors.wrong,
            "points of the chart that are wrong": f"{self.wrong_points:,} of {self.points:,}",
            "nearest reviews that are wrong": f"{self.wrong_hits} of {self.hits}",
            "time": f"{self.seconds:.1f} s",
        }

    def verdict(self) -> str:
        """Return the line that says whether the guarantees held."""
        if self.is_good:
            return (
                f"The stores held: {self.samples.published:,} samples and"
                f" {self.vectors.published:,} vectors, each there once, and two queries answered"
                f" right, through {counted(self.kills, 'kill')}."
            )
        return (
            f"The stores did not hold: {', '.join(self.wrong)}. Please report this with the seed."
        )


class _Filling:
    """A task, the store that it fills, and how far it is."""

    def __init__(
        self, task: Task, store: SharedStore, figure: str, report: Callable[[Progress], None]
    ) -> None:
        self.task = task
        self.checkpoints = 0
        self.batches = 0
        """Those with rows."""
        self._store = store
        self._figure = figure
        self._report = report
        self._rows = 0
        self._progress_s = time.monotonic()

    def see(self, progress: Progress) -> None:
        self._report(progress)
        if progress.checkpoints != self.checkpoints or progress.failure:
            self.checkpoints = progress.checkpoints
            self._progress_s = time.monotonic()
        self.batches += progress.rows > self._rows
        self._rows = progress.rows

    def is_over(self, published: int) -> bool:
        is_stuck = time.monotonic() - self._progress_s > _PATIENCE_S
        return is_stuck or int(self._store.stat()[self._figure]) >= published


class StoresAct(DemoAct):
    """Publishes sales and reviews until Spark has stored them all; kills the stores meanwhile."""

    def __init__(
        self, scratch: Path, sales: int, seed: int, display: TaskDisplay, spark: DemoSpark
    ) -> None:
        self._scratch = scratch
        self._sales = sales
        self._seed = seed
        self._display = display
        self._spark = spark
        self._lock = threading.Lock()
        self._applied_some = threading.Event()
        self._killed = threading.Event()
        self._kills = 0
        self._checkpoints_before_kill = 0
        self._is_stopping = False
        self._chart: SelectedSeries
        self._hits: pa.RecordBatch

    def run(self) -> StoresOutcome:
        begin = time.perf_counter()
        self._display.status("opening the stores")
        self._display.note(
            f"bakeries publish {self._sales:,} sales, and every {SALES_PER_REVIEW}th customer a"
            " review, while two tasks on Spark store them as time series and as vectors"
        )
        series, vectors = self._scratch / "sales", self._scratch / "reviews"
        create_store(series, "timeseries")
        metadata = {"number": "long", "shop": "string", "text": "string"}
        create_store(vectors, "vectors", dimension=DIMENSION, metadata=metadata)
        with (
            StoresProcess(series, vectors) as self._owner,
            hr.open(self._scratch / "bakeries") as workspace,
        ):
            self._bakeries = Bakeries(workspace, self._seed, self._sales)
            self._owner.wait_until_open()
            with open_timeseries(series) as samples, open_vectors(vectors) as embeddings:
                self._fill(workspace, samples, embeddings)
                return self._outcome(samples, embeddings, begin)

    def _fill(
        self, workspace: hr.Workspace, samples: SharedTimeSeries, embeddings: SharedVectors
    ) -> None:
        bakeries = self._bakeries
        stored_sales = hr.materialization(
            workspace,
            sources=[bakeries.sale_documents],
            sink=hr.timeseries(self._scratch / "sales"),
            name="sales",
            shards=1,
        )(_as_samples)
        stored_reviews = hr.materialization(
            workspace,
            sources=[bakeries.review_documents],
            sink=hr.vectors(self._scratch / "reviews"),
            name="reviews",
            shards=1,
        )(_as_vectors)
        reporter = self._display.reporter
        self._fillings = {
            "sales": _Filling(stored_sales, samples, "samples", reporter("sales")),
            "reviews": _Filling(stored_reviews, embeddings, "rows", reporter("reviews")),
        }
        gates = {GROUPS // 2: self._applied_some, _LAST_GATE: self._killed}
        self._publishing = PublishingThread(bakeries.sell, self._sales, gates)
        with self._publishing.running():
            run_aside(self._apply, self._stop)

    def _apply(self) -> None:
        from headrace.spark.tasks.concurrent_runs import run_beside

        self._display.status("starting Spark")
        spark = self._spark.session()
        self._display.status("starting members")
        if not self._is_stopping:
            tasks = [each.task for each in self._fillings.values()]
            run_beside(spark, tasks, 5, lambda name: partial(self._watch, self._fillings[name]))

    def _stop(self) -> None:
        self._is_stopping = True
        self._display.status("stopping")
        for each in self._fillings.values():
            each.task.stop()

    def _watch(self, filling: _Filling, progress: Progress) -> None:
        filling.see(progress)
        if progress.ended:
            return
        batches = min(each.batches for each in self._fillings.values())
        if batches:
            self._applied_some.set()
        if not self._is_stopping:
            self._display.status(f"{len(self._bakeries.sales):,} sales are published")
        with self._lock:
            if batches >= _BATCHES_BEFORE_KILL and not self._killed.is_set():
                self._kill()
        if self._killed.is_set() and self._publishing.is_done:
            bakeries = self._bakeries
            rows = bakeries.sales if filling.task.name == "sales" else bakeries.reviews
            if filling.is_over(len(rows)):
                filling.task.stop()

    def _kill(self) -> None:
        self._kills = int(self._owner.kill())
        self._checkpoints_before_kill = self._checkpoints()
        self._killed.set()
        self._display.note(
            f"the process that has both stores open is killed: kill -9 {self._owner.pid}"
        )

    def _checkpoints(self) -> int:
        return sum(each.checkpoints for each in self._fillings.values())

    def _outcome(
        self, samples: SharedTimeSeries, embeddings: SharedVectors, begin: float
    ) -> StoresOutcome:
        bakeries = self._bakeries
        answer = samples.query_range(QUERY, START_MS, CLOSING_MS, STEP_MS / 1000)
        self._chart = answer.series
        in_the_shop = {"field": "shop", "eq": WANTED_SHOP}
        self._hits = embeddings.search(embed(WANTED_TEXT), NEAREST, in_the_shop, exact=True)
        return StoresOutcome(
            checkpoints=self._checkpoints(),
            checkpoints_after_kill=self._checkpoints() - self._checkpoints_before_kill,
            kills=self._kills,
            samples=count_samples(bakeries.sales, _table(samples)),
            vectors=count_vectors(bakeries.reviews, _table(embeddings)),
            points=len(self._chart.timestamps),
            wrong_points=wrong_points(bakeries.sales, self._chart),
            hits=self._hits.num_rows,
            wrong_hits=wrong_hits(bakeries.reviews, self._hits.to_pylist()),
            seconds=time.perf_counter() - begin,
        )

    def show(self) -> None:
        print_line(f"dollars that each shop took in half an hour: {QUERY}")
        print_chart(self._chart, START_MS, CLOSING_MS, STEP_MS)
        print_line(f"reviews of the {WANTED_SHOP} that are nearest to: {WANTED_TEXT}")
        print_rows(self._hits.select(["distance", "text"]))


def _as_samples(cut: hr.Cut) -> Any:
    """Return the samples of a cut's sales; this is the function of a task."""
    return cut.sales.selectExpr(
        "at_ms AS timestamp",
        "double(cents) AS value",
        "'sale_cents' AS __name__",
        "shop",
        f"'{_attempt()}' AS attempt",
    )


def _as_vectors(cut: hr.Cut) -> Any:
    """Return the vectors of a cut's reviews; this is the function of a task."""
    return cut.reviews.mapInArrow(partial(review_vectors, _attempt()), VECTOR_COLUMNS)


def _attempt() -> str:
    """Return a name that no other run of a micro-batch has."""
    return uuid.uuid4().hex[:8]


def _table(store: SharedStore) -> pa.Table:
    return pa.Table.from_batches(store.scan(), store.schema)

"""Runs a job with real workers, cursors and states in one thread, step by step, from a seed.

Every call of a worker to anything else is a step. Between two steps a worker may be killed, or
given up and go on all the same (a zombie). The driver may be lost with its memory topics and start
again. What is durable is kept in memory topics that survive the driver.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Coroutine, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import BudgetError, InDoubtError, PeerLostError, StorageError, UnitError
from headrace.pipeline.contract import OnError, OpenOperator, OperatorContext, Processed, UnitRows
from headrace.pipeline.job import Job, Stage, StageConfig
from headrace.pipeline.job_run import load_state
from headrace.pipeline.master.actor import Master
from headrace.pipeline.master.inputs import InputTopic, StageInput, inputs, topics
from headrace.pipeline.master.messages import Answer, AskWork, Join, Leave, Request
from headrace.pipeline.master.state import JobState
from headrace.pipeline.messages import QueueMessage, decode_message, encode_message
from headrace.pipeline.source.sources import TableSource
from headrace.pipeline.worker.environment import WorkerEnvironment, WorkerStage
from headrace.pipeline.worker.worker_loop import Worker
from headrace.queues.contract import OffsetCommit, Output, Record
from headrace.queues.memory_backend import MemoryBackend, MemoryTopics

TURNS_MAX = 60_000
SETTLED_TURNS = 1000
"""So long after the last fault nothing fails any more."""
PARTITIONS = 3
POISON = "poison"


class Step:
    """Hands control back to the simulator."""

    def __await__(self) -> Generator[None, None, None]:
        yield


class Dead(BaseException):
    """The end of a worker's process."""


class FakeTable:
    """Rows without Arrow: a simulation has thousands of tables."""

    def __init__(self, rows: Sequence[str]) -> None:
        self.rows = list(rows)

    @property
    def num_rows(self) -> int:
        return len(self.rows)

    def take(self, numbers: Sequence[int]) -> FakeTable:
        return FakeTable([self.rows[n] for n in numbers])


class FakePayloads:
    def __init__(self) -> None:
        self._kept: dict[str, FakeTable] = {}
        self._count = 0

    def put(self, stage: str, unit: str, table: FakeTable, *, durable: bool = True) -> str:
        self._count += 1
        ref = f"{'durable' if durable else 'scratch'}/{stage}/{unit}/{self._count}"
        self._kept[ref] = table
        return ref

    def delete_scratch(self, refs: Sequence[str]) -> None:
        for ref in refs:
            if ref.startswith("scratch/"):
                self._kept.pop(ref, None)

    def get(self, ref: str) -> FakeTable:
        return self._kept[ref]


class SimulatedBackend(MemoryBackend):
    """Every call is a step, and a commit may fail so that nobody knows whether it took effect."""

    def __init__(self, held: MemoryTopics, world: World) -> None:
        super().__init__(held)
        self._world = world

    async def fetch(self, *args: Any, **options: Any) -> list[Record]:
        await Step()
        return await super().fetch(*args, **options)

    async def end_offset(self, *args: Any, **options: Any) -> int:
        await Step()
        return await super().end_offset(*args, **options)

    async def get_committed_offset(self, *args: Any, **options: Any) -> int | None:
        await Step()
        return await super().get_committed_offset(*args, **options)

    async def produce_batch(self, *args: Any, **options: Any) -> list[int]:
        await Step()
        offsets = await super().produce_batch(*args, **options)
        if self._world.happens(0.01):
            raise PeerLostError("the answer to a produce is lost")
        await Step()
        return offsets

    async def produce_and_commit(
        self, outputs: Sequence[Output], commit: OffsetCommit
    ) -> list[int]:
        await Step()
        if self._world.happens(0.03):
            raise StorageError("the disk is full")
        offsets = await super().produce_and_commit(outputs, commit)
        if self._world.happens(0.05):
            raise InDoubtError("the owner is lost")
        await Step()
        return offsets


class SimulatedOperator:
    """Passes rows on, but for some units; rows that are poison kill the process."""

    expensive = False

    def __init__(self, world: World, stage: str) -> None:
        self.on_error: OnError = "dead_letter" if stage == "s0" else "fail"
        self._world = world
        self._stage = stage

    def fingerprint(self) -> str:
        return self._stage

    async def open(self, context: OperatorContext) -> OpenOperator:
        return self

    async def process(self, rows: UnitRows) -> Processed:
        if self._world.happens(0.005):
            raise BudgetError("the budget is spent")
        kept = [row for row in range(rows.table.num_rows) if row not in rows.skip]
        if rows.probe is None:
            await Step()
            self._check([rows.table.rows[row] for row in kept])
        else:
            for row in kept:
                await rows.probe([row])
                self._check([rows.table.rows[row]])
        return Processed(FakeTable([row for row in rows.table.take(kept).rows if self._keeps(row)]))

    def _check(self, rows: Sequence[str]) -> None:
        if self._stage == "s0" and any(row.startswith(POISON) for row in rows):
            raise Dead

    def _keeps(self, row: str) -> bool:
        return keeps(self._stage, row)

    async def close(self) -> None:
        """Nothing is open."""


def keeps(stage: str, row: str) -> bool:
    """Return True if the stage passes the row on: a fixed choice."""
    return Counter(stage + row)["1"] % 4 != 3


class SimulatedControl:
    """The conversation of one worker. Once it is cut off, the worker learns nothing more."""

    def __init__(self, master: Master) -> None:
        self._master = master
        self.worker = ""
        self.is_cut_off = False
        self.has_left = False

    async def ask(self, request: Request) -> Answer:
        await Step()
        if self.is_cut_off:
            raise PeerLostError("the master has given this worker up")
        if isinstance(request, Join):
            answer = self._master.join(request)
            self.worker = "" if isinstance(answer, Leave) else request.worker
        elif isinstance(request, AskWork):
            answer = self._master.handle(self.worker, AskWork(0))
        else:
            answer = self._master.handle(self.worker, request)
        self._master.look(JobState.validate)
        self.has_left |= isinstance(answer, Leave)
        await Step()
        return answer

    def cut_off(self) -> None:
        if self.is_cut_off:
            return
        self.is_cut_off = True
        if self.worker:
            (self._master.leave if self.has_left else self._master.lose)(self.worker)
            self._master.look(JobState.validate)


@dataclass
class SimulatedWorker:
    stage: str
    control: SimulatedControl
    running: Coroutine[Any, Any, None]
    turns_left: int = field(default=10**9)
    """A zombie ends after so many turns."""

    def step(self) -> bool:
        """Run until the next step; False if the worker has ended."""
        try:
            self.running.send(None)
        except (StopIteration, Dead, PeerLostError):
            return False
        self.turns_left -= 1
        return self.turns_left > 0


class World:
    """One simulation."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.faults_end = self.random.choice([0, 500, 3000])
        self.turn = 0
        self.durable = MemoryTopics()
        self.payloads = FakePayloads()
        self.epoch = 0
        self.workers: list[SimulatedWorker] = []
        self.zombies: list[SimulatedWorker] = []
        self.job = self._make_job()
        self._names = 0
        self._fill_source()
        self.start_driver()

    def happens(self, probability: float) -> bool:
        return self.turn < self.faults_end and self.random.random() < probability

    # -- the job -----------------------------------------------------------------------------

    def _make_job(self) -> Job:
        """Make a random graph. Its last stage, which reads all ends, is durable."""
        job = Job("job").add_stage(Stage("source", TableSource(None, 1)))
        names = ["source"]
        count = self.random.randint(1, 5)
        for number in range(count):
            is_last = number == count - 1
            unread = [name for name in names if not job.downstreams(name)]
            upstreams = unread if is_last else self.random.sample(names, 1)
            if not is_last and len(names) > 2 and self.random.random() < 0.3:
                upstreams = self.random.sample(names, 2)
            if is_last and self.random.random() < 0.5:
                upstreams = sorted({*unread, self.random.choice(names)})
            on_memory = not is_last and number > 0 and self.random.random() < 0.6
            config = StageConfig(
                queue_backend="memory" if on_memory else "local",
                batch_size=self.random.choice([1, 2, 7]),
                workers=self.random.randint(1, 2),
            )
            name = f"s{number}"
            job.add_stage(Stage(name, SimulatedOperator(self, name), config), upstreams)
            names.append(name)
        job.validate()
        return job

    def _fill_source(self) -> None:
        self.units = {f"u{n}": [f"{n}-{row}" for row in range(2)] for n in range(12)}
        for unit in self.random.sample(sorted(self.units), self.random.choice([0, 0, 1, 2])):
            self.units[unit].append(f"{POISON}-{unit}")
        self.durable.change(lambda state, _: state.create_topic("source", PARTITIONS))
        for number, (unit, rows) in enumerate(self.units.items()):
            ref = self.payloads.put("source", unit, FakeTable(rows))
            value = encode_message(QueueMessage(unit, ref, len(rows)))
            self.durable.produce("source", [value], None, number % PARTITIONS)

    # -- the driver --------------------------------------------------------------------------

    def start_driver(self) -> None:
        """Begin a run: memory topics are new and empty, offsets are what was committed."""
        self.epoch += 1
        self.memory = MemoryTopics()
        names = {
            stage.stage_id: stage.stage_id
            + ("" if self.job.is_durable(stage.stage_id) else f".{self.epoch}")
            for stage in self.job.operators
        }
        self.topics = topics(self.job, {"source": InputTopic("source", True, PARTITIONS)}, names)
        for stage in self.job.operators:
            topic = self.topics[stage.stage_id]
            held = self.durable if topic.is_durable else self.memory
            for name in (topic.name, f"{topic.name}.dead"):
                finish(MemoryBackend(held).create_topic(name, topic.partitions))
        self.inputs: dict[str, list[StageInput]] = inputs(
            self.job, self.topics, {stage.stage_id: stage.stage_id for stage in self.job.operators}
        )
        state = finish(load_state(self.job, self.inputs, MemoryBackend(self.durable)))
        self.state = state
        memory = self.memory
        self.master = Master(
            state, lambda cut: memory.truncate_before(cut.topic, cut.offset, cut.partition)
        )

    def lose_driver(self) -> None:
        for worker in self.workers:
            worker.control.is_cut_off = True
            self._give_up(worker)
        self.workers = []
        self.start_driver()

    # -- workers -----------------------------------------------------------------------------

    def _give_up(self, worker: SimulatedWorker) -> None:
        """Some workers that were given up go on for a while."""
        worker.control.cut_off()
        if self.random.random() < 0.5:
            worker.turns_left = self.random.randint(1, 40)
            self.zombies.append(worker)
        else:
            worker.running.close()

    def _start_workers(self) -> None:
        for stage in self.job.operators:
            name = stage.stage_id
            running = sum(worker.stage == name for worker in self.workers)
            if running < stage.config.workers and not self.state.is_over(name):
                self.workers.append(self._worker(name))

    def _worker(self, stage: str) -> SimulatedWorker:
        self._names += 1
        control = SimulatedControl(self.master)
        topic = self.topics[stage]
        environment = WorkerEnvironment(
            None,  # type: ignore[arg-type]
            SimulatedBackend(self.durable, self),
            SimulatedBackend(self.memory, self),
            self.payloads,  # type: ignore[arg-type]
            control,
            in_thread=in_step,
            start=Later,
            sleep=sleep_step,
            clock=lambda: self.random.choice([0.0, 1.0]),
        )
        worker_stage = WorkerStage(
            stage,
            self.job.stages[stage].spec,
            topic.is_durable,
            topic.name,
            f"{topic.name}.dead",
            stage,
            1,
            len(self.job.upstreams(stage)) > 1,
            frozenset(
                each
                for each in self.job.upstreams(stage)
                if not self.job.is_durable(each) and len(self.job.downstreams(each)) == 1
            ),
        )
        worker = Worker(f"w{self._names}", worker_stage, environment)
        return SimulatedWorker(stage, control, worker.run())

    # -- the run -----------------------------------------------------------------------------

    def run(self) -> None:
        """Run until the job is done. Raises if it fails or never ends."""
        while self.turn < TURNS_MAX:
            self.turn += 1
            outcome = self.state.outcome
            if outcome == "failed":
                # A row may be blamed for workers that were lost for another reason.
                assert isinstance(self.state.error, UnitError), self.state.error
                assert self.turn < self.faults_end + SETTLED_TURNS, self.state.error
                self.lose_driver()
            if outcome == "done" and not self.workers and not self.zombies:
                return
            if outcome == "paused":
                self.lose_driver()
            self._turn()
        raise AssertionError("the run never ends")

    def _turn(self) -> None:
        self._start_workers()
        if self.happens(0.002):
            self.lose_driver()
        everybody = self.workers + self.zombies
        if not everybody:
            return
        worker = self.random.choice(everybody)
        if worker in self.workers and self.happens(0.01):
            self.workers.remove(worker)
            self._give_up(worker)
        elif not worker.step():
            worker.control.cut_off()
            (self.workers if worker in self.workers else self.zombies).remove(worker)
            worker.running.close()

    # -- the oracle --------------------------------------------------------------------------

    def expected(self, stage: str) -> Counter[str]:
        """Return the rows that a stage must produce, by unit: what it gets, less what it drops."""
        if stage == "source":
            return Counter(f"{unit}:{row}" for unit, rows in self.units.items() for row in rows)
        upstreams = self.job.upstreams(stage)
        topic = self.topics["s0"]
        dead = self.produced(f"{topic.name}.dead", topic.partitions) if stage == "s0" else {}
        found: Counter[str] = Counter()
        for upstream in upstreams:
            for entry, count in self.expected(upstream).items():
                unit, row = entry.split(":")
                if keeps(stage, row) and entry not in dead:
                    named = f"{upstream}.{unit}" if len(upstreams) > 1 else unit
                    found[f"{named}:{row}"] += count
        return found

    def produced(self, topic: str, partitions: int) -> Counter[str]:
        found: Counter[str] = Counter()
        for partition in range(partitions):
            reading = MemoryBackend(self.durable).fetch(topic, 0, 10**6, partition=partition)
            for record in finish(reading):
                message = decode_message(record.value)
                rows = self.payloads.get(message.data_ref).rows
                found.update(f"{message.split_id}:{row}" for row in rows)
        return found

    def check(self) -> None:
        """Compare every durable topic with what must be there."""
        for stage in self.job.operators:
            topic = self.topics[stage.stage_id]
            if topic.is_durable:
                assert self.produced(topic.name, topic.partitions) == self.expected(stage.stage_id)
        dead = {row for rows in self.units.values() for row in rows if row.startswith(POISON)}
        topic = self.topics["s0"]
        found = self.produced(f"{topic.name}.dead", topic.partitions)
        rows = [entry.split(":")[1] for entry in found.elements()]
        assert len(set(rows)) == len(rows), "a dead letter is there twice"
        # A row may be blamed for workers that were lost for another reason.
        assert dead <= set(rows), "a poison row is not a dead letter"


class Later:
    """A coroutine that runs when it is awaited, and is closed if nobody awaits it."""

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self._work = work

    def __await__(self) -> Generator[Any, None, Any]:
        return self._work.__await__()

    def __del__(self) -> None:
        self._work.close()


async def in_step(function: Any, *args: Any) -> Any:
    await Step()
    result = function(*args)
    await Step()
    return result


async def sleep_step(_: float) -> None:
    await Step()


def finish(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waits")

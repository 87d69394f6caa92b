"""Runs a job with real workers, cursors and states in one thread, step by step, from a seed.

Every call of a worker to anything else is a step. Between two steps a worker may be killed, or
given up and go on all the same (a zombie). The driver may be lost with its memory topics and start
again. What is durable is kept in memory topics, and in the dicts of a ledger, that survive the
driver.

    python -m headrace.testing.pipeline.job_simulator --seeds 20000 --processes 16
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from enum import StrEnum
from functools import partial
from typing import Any

from headrace.errors import UnitError
from headrace.pipeline.contract import (
    InDoubtPolicy,
    OnError,
    OpenOperator,
    OperatorContext,
    Processed,
    UnitRows,
)
from headrace.pipeline.job import Job, Stage, StageConfig
from headrace.pipeline.ledger.state import StageTerms
from headrace.pipeline.ledger.totals import Nanos
from headrace.pipeline.master.actor import Master
from headrace.pipeline.master.inputs import InputTopic, StageInput, inputs, topics
from headrace.pipeline.messages import QueueMessage, decode_message, encode_message
from headrace.pipeline.run.job_run import load_state
from headrace.pipeline.source.sources import TableSource
from headrace.pipeline.worker.environment import WorkerEnvironment, WorkerStage
from headrace.pipeline.worker.worker_loop import Worker
from headrace.queues.memory_backend import MemoryBackend, MemoryTopics
from headrace.testing.pipeline.job_kinds import JobKind
from headrace.testing.pipeline.ledger_books import PRICE, PaidProvider
from headrace.testing.pipeline.simulated_ledger import HELD, LedgerConnection, SimulatedLedger
from headrace.testing.pipeline.simulated_parts import (
    FakePayloads,
    FakeTable,
    LaterWork,
    ProcessDeath,
    SimulatedBackend,
    SimulatedControl,
    SimulatedWorker,
    StepPoint,
    finish,
    in_step,
    sleep_step,
    truncate,
)
from headrace.testing.seeds import Say, Simulation, main

STEPS = 3000
"""Faults happen until this turn, at the latest."""
TURNS_MAX = 60_000
SETTLED_TURNS = 1000
"""So long after the last fault nothing fails any more."""
PARTITIONS = 3
UNITS = 12
POISON = "poison"


class SimulatedOperator:
    """Passes rows on, but for some; rows that are poison kill the process."""

    def __init__(self, world: JobWorld, stage: str, *, expensive: bool) -> None:
        self.on_error: OnError = "dead_letter" if stage == "s0" else "fail"
        self.expensive = expensive
        self._world = world
        self._stage = stage

    def fingerprint(self) -> str:
        return self._stage

    async def open(self, context: OperatorContext) -> OpenOperator:
        connection: Any = context.ledger
        return OpenSimulatedOperator(self._world, self._stage, connection)


class OpenSimulatedOperator:
    """The operator in one worker."""

    def __init__(self, world: JobWorld, stage: str, connection: LedgerConnection | None) -> None:
        self._world = world
        self._stage = stage
        self._connection = connection

    async def process(self, rows: UnitRows) -> Processed:
        table: Any = rows.table
        kept = [row for row in range(table.num_rows) if row not in rows.skip]
        await StepPoint()
        for number in kept:
            if rows.probe:
                await rows.probe([number])
            await self._process_row(rows.unit, number, table.rows[number])
        passed_on: Any = FakeTable(
            [row for row in table.take(kept).rows if keeps(self._stage, row)]
        )
        return Processed(passed_on)

    async def _process_row(self, unit: str, number: int, row: str) -> None:
        lives = not (self._stage == "s0" and row.startswith(POISON))
        if self._connection:
            content = self._world.content(row)
            lives = await self._connection.pay(unit, number, content, not lives) and lives
        if not lives:
            self._world.count(JobKind.POISON_DEATH)
            raise ProcessDeath

    async def close(self) -> None:
        """Nothing is open."""


def keeps(stage: str, row: str) -> bool:
    """Return True if the stage passes the row on: a fixed choice."""
    return Counter(stage + row)["1"] % 4 != 3


class JobWorld:
    """One simulation."""

    def __init__(self, seed: int, steps: int = STEPS, say: Say | None = None) -> None:
        self.random = random.Random(seed)
        self.counts: Counter[StrEnum] = Counter()
        self._say = say
        self.faults_end = self.random.choice([0, steps // 6, steps])
        self.turn = 0
        self.durable = MemoryTopics()
        self.payloads = FakePayloads()
        self.epoch = 0
        self.workers: list[SimulatedWorker] = []
        self.zombies: list[SimulatedWorker] = []
        self.paid_stage = ""
        self.job = self._make_job()
        self.ledger = self._make_ledger() if self.paid_stage else None
        self._names = 0
        self._is_same_budget = False
        self._fill_source()
        self.start_driver()

    def count(self, kind: JobKind) -> None:
        self.counts[kind] += 1
        if self._say:
            self._say(f"turn {self.turn}: {kind.name.lower()}: {kind}")

    def _make_ledger(self) -> SimulatedLedger:
        chance = self.random
        policy: InDoubtPolicy = chance.choice(["resend", "resend", "hold", "retry"])
        has_one_price = chance.random() < 0.7
        cost = PRICE if has_one_price else None
        reuse_equal, is_limited = chance.random() < 0.3, chance.random() < 0.6
        budget = Nanos(chance.randrange(0, 2 * UNITS) * PRICE) if is_limited else None
        terms = StageTerms(policy, reuse_equal, cost)
        provider = PaidProvider(policy == "resend", has_one_price)
        ledger = SimulatedLedger(self, self.paid_stage, terms, provider)
        ledger.budget = budget
        return ledger

    def content(self, row: str) -> str:
        """Return what a paid call is made with. It does not depend on the unit."""
        return row.partition("-")[0]

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
            is_paid = not on_memory and not self.paid_stage and self.random.random() < 0.6
            config = StageConfig(
                queue_backend="memory" if on_memory else "local",
                batch_size=self.random.choice([1, 2, 7]),
                workers=self.random.randint(1, 2),
            )
            name = f"s{number}"
            if is_paid:
                self.paid_stage = name
            operator = SimulatedOperator(self, name, expensive=is_paid)
            job.add_stage(Stage(name, operator, config), upstreams)
            names.append(name)
        job.validate()
        return job

    def _fill_source(self) -> None:
        self.units = {f"u{n}": [f"{n}-{row}" for row in range(2)] for n in range(UNITS)}
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
        if self.ledger:
            self.ledger.open()
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
        self.master = Master(state, partial(truncate, self.memory))

    def lose_driver(self) -> None:
        self.count(JobKind.DRIVER_LOST)
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
            self.count(JobKind.LEASE_EXPIRED)
            worker.turns_left = self.random.randint(1, 40)
            worker.asleep = self.random.choice([0, 0, 50])
            self.zombies.append(worker)
            # The ledger may believe for longer that the worker lives.
            if self.random.random() < 0.5:
                worker.end_calls()
        else:
            self.count(JobKind.WORKER_KILLED)
            worker.end()

    def _start_workers(self) -> None:
        for stage in self.job.operators:
            name = stage.stage_id
            running = sum(worker.stage == name for worker in self.workers)
            if running < stage.config.workers and not self.state.is_over(name):
                self.workers.append(self._worker(name))

    def _worker(self, stage: str) -> SimulatedWorker:
        self._names += 1
        name = f"w{self._names}"
        control = SimulatedControl(self.master, self)
        connection = None
        if self.ledger and stage == self.paid_stage:
            connection = LedgerConnection(self.ledger, name)
        topic = self.topics[stage]
        environment = WorkerEnvironment(
            None,  # type: ignore[arg-type]
            SimulatedBackend(self.durable, self),
            SimulatedBackend(self.memory, self),
            self.payloads,  # type: ignore[arg-type]
            control,
            connection,  # type: ignore[arg-type]
            in_thread=in_step,
            start=LaterWork,
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
        worker = Worker(name, worker_stage, environment)
        end_calls = connection.end if connection else lambda: None
        return SimulatedWorker(stage, control, worker.run(), end_calls)

    # -- the run -----------------------------------------------------------------------------

    def run(self) -> None:
        """Run until the job is done. Raises if it fails or never ends."""
        while self.turn < TURNS_MAX:
            self.turn += 1
            outcome = self.state.outcome
            if outcome == "failed":
                self._go_on_after_failure()
            if outcome == "done" and not self.workers and not self.zombies:
                return
            if outcome == "paused":
                self._go_on_after_pause()
            self._turn()
        raise AssertionError("the run never ends")

    def _go_on_after_failure(self) -> None:
        self.count(JobKind.RUN_FAILED)
        error = self.state.error
        assert isinstance(error, UnitError), error
        if self.ledger and HELD in str(error):
            self.ledger.hold_no_more()
        else:
            # A row may be blamed for workers that were lost for another reason.
            assert self.turn < self.faults_end + SETTLED_TURNS, error
        self.lose_driver()

    def _go_on_after_pause(self) -> None:
        assert self.ledger
        self.count(JobKind.PAUSED)
        self.ledger.check()
        if self._is_same_budget:
            self.count(JobKind.PAUSED_AGAIN)
            self.ledger.check_same_budget()
        self._is_same_budget = not self._is_same_budget and self.random.random() < 0.3
        if not self._is_same_budget:
            self.count(JobKind.BUDGET_RAISED)
            # More each time: a row that kills workers costs some calls before it is found.
            pauses = self.counts[JobKind.PAUSED]
            self.ledger.raise_budget(self.random.randrange(1, 4 * PRICE * (1 + pauses)))
        self.lose_driver()

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
            worker.end()
            (self.workers if worker in self.workers else self.zombies).remove(worker)

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
                produced = self.produced(topic.name, topic.partitions)
                assert produced == self.expected(stage.stage_id)
                self.counts[JobKind.ROW] += produced.total()
        dead = {row for rows in self.units.values() for row in rows if row.startswith(POISON)}
        topic = self.topics["s0"]
        found = self.produced(f"{topic.name}.dead", topic.partitions)
        rows = [entry.split(":")[1] for entry in found.elements()]
        assert len(set(rows)) == len(rows), "a dead letter is there twice"
        self.counts[JobKind.DEAD_LETTER] += len(rows)
        if self.ledger:
            self.ledger.check()
        # A row may be blamed for workers that were lost for another reason.
        assert dead <= set(rows), "a poison row is not a dead letter"


def _run(seed: int, steps: int, say: Say | None) -> Counter[StrEnum]:
    world = JobWorld(seed, steps, say)
    world.run()
    world.check()
    return world.counts


SIMULATION = Simulation(
    "headrace.testing.pipeline.job_simulator", "a job's runs", JobKind, STEPS, _run
)


if __name__ == "__main__":
    # Other processes know this module by its name.
    from headrace.testing.pipeline import job_simulator

    sys.exit(main(job_simulator.SIMULATION))

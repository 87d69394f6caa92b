"""Session, Slices, Queues and readers with no threads: random orders, delays, crashes, topologies.

    python -m headrace.testing.shuffle.simulator --seeds 20000 --processes 16

runs many seeds, and prints failures and how often each kind of thing happened;

    python -m headrace.testing.shuffle.simulator --replay SEED

runs one seed again and prints every step.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from random import Random

from headrace.errors import QueueFullError, StorageError
from headrace.frontier import TAG_MAX, BindingTag
from headrace.shuffle.checkpoint import Checkpoint
from headrace.shuffle.routing import Range, split_evenly
from headrace.shuffle.session.pending_limit import PENDING_MAX
from headrace.shuffle.slice.state import Limits
from headrace.testing.seeds import Say, Simulation, main
from headrace.testing.shuffle.bindings import COLLECTIONS, PARTITIONED, Bindings
from headrace.testing.shuffle.kinds import Kind
from headrace.testing.shuffle.memory_run import AMPLE, Conditions, MemoryRun, Message
from headrace.testing.shuffle.oracle import Key, Oracle
from headrace.testing.shuffle.pipes import SESSION, Party, Pipe, Role
from headrace.testing.shuffle.trace import Trace
from headrace.testing.shuffle.world import World

STEPS = 70
_PATIENCE = 10
"""`interrupt` polls at most this often for a checkpoint before it gives up."""
QUADRANTS = [
    Range(0, (1 << 31) - 1, 0, (1 << 31) - 1),
    Range(0, (1 << 31) - 1, 1 << 31, (1 << 32) - 1),
    Range(1 << 31, (1 << 32) - 1),
]


def draw_limits(rng: Random) -> Limits:
    """Draw how much a Slice takes, sends and reports at once."""
    return Limits(
        credit_bytes=rng.choice([1, 600, 4000, 1 << 20]),
        fetch_bytes=rng.choice([1, 30, 1 << 20]),
        ahead_bytes=rng.choice([1, 100, 1 << 20]),
        block_documents=rng.choice([1, 3, 100]),
        cycle_documents=rng.choice([1, 4, 100]),
        report_documents=rng.choice([2, 1 << 62, 1 << 62]),
        patience=rng.choice([0, 50]),
    )


class Simulator:
    """One task that reads one world, from its first Session to its last."""

    def __init__(
        self,
        seed: int,
        *,
        hints: bool = True,
        bindings_change: bool = True,
        say: Callable[[str], None] | None = None,
    ) -> None:
        """`say` is told every step and every message."""
        self.rng = Random(seed)
        self.say = say or (lambda _: None)
        self._on_send = self._say_message if say else None
        self.counts: Counter[Kind] = Counter()
        self.world = World(
            self.rng,
            COLLECTIONS,
            self.rng.choice([1, 2, 4]),
            hints,
            partitioned=PARTITIONED,
            counts=self.counts,
        )
        self.oracle = Oracle(self.world, self.counts)
        self.bindings = Bindings(self.rng, self.counts)
        self._bindings_change = bindings_change
        self.last_commit = Checkpoint()
        self.prepared: Checkpoint | None = None
        """The checkpoint that the consumer got and has not stored."""
        self.prepared_documents: set[Key] = set()
        self.is_in_hand = False
        """True if this Session made the prepared checkpoint; else a Session has to replay it."""
        self.is_draining = False
        self.empty_share = 0.3
        """The share of polls whose checkpoint may be empty."""
        self._trouble = 0.0
        """How often a fetch is answered late, or twice."""
        self._watch_lags = False
        """True if the watch tells what happened late, and in parts."""
        self._slow_pipe: Pipe | None = None
        """A pipe from a Slice to the Session that is slower than all others, if there is one."""
        self.run = self.open()

    def open(self, *, is_cut: bool = False, calm: bool = False) -> MemoryRun:
        count = self.rng.choice([1, 2, 2, 3])
        ranges = QUADRANTS if count == 3 and self.rng.random() < 0.5 else split_evenly(count)
        prepared = self.prepared or Checkpoint()
        sources = self.bindings.resolve({**self.last_commit.bindings, **prepared.bindings})
        self.say(f"open with {count} members: {', '.join(each.name for each in sources.all)}")
        self.counts[Kind.REPLAY] += self.prepared is not None
        self.bindings.count_delays()
        self.run = MemoryRun(
            self.world,
            sources,
            ranges,
            self.last_commit,
            self.prepared,
            is_cut=is_cut,
            conditions=self.conditions(calm=calm),
            counts=self.counts,
            on_send=self._on_send,
        )
        self._trouble = self.rng.choice([0.0, 0.1, 0.4])
        self._watch_lags = self.rng.random() < 0.5
        slow_slice = Party(Role.SLICE, self.rng.randrange(count))
        is_slow = not calm and self.rng.random() < 0.5
        self._slow_pipe = Pipe(slow_slice, SESSION) if is_slow else None
        self._trace = Trace(self.run, lambda producer: f"producer {producer}")
        by_name = {binding.name: binding for binding in self.bindings.all}
        self.oracle.session_opened(
            {source.tag: by_name[source.name] for source in sources.all}, self.run.router
        )
        return self.run

    def _say_message(self, pipe: Pipe, message: Message) -> None:
        lines = "; ".join(self._trace.message(message))
        self.say(f"    {self._trace.pipe(pipe)}: {lines}")

    def conditions(self, *, calm: bool) -> Conditions:
        """Draw the limits of a Session; a calm one has room enough."""
        rng = self.rng
        soft_bytes = rng.choice([AMPLE, AMPLE, 1, 800, 3000])
        hard_bytes = soft_bytes + rng.choice([AMPLE, AMPLE, 100, 700])
        return Conditions(
            soft_bytes,
            soft_bytes + AMPLE if calm else hard_bytes,
            draw_limits(rng),
            kept_rows_max=rng.choice([None, None, 10, 60]),
            pending_max=rng.choice([1, 3, PENDING_MAX]),
            pending_hard_max=PENDING_MAX if calm else rng.choice([1, PENDING_MAX]),
        )

    # -- what happens ----------------------------------------------------------------------

    def simulate(self, steps: int = STEPS) -> None:
        for _ in range(steps):
            action = self.rng.choices(_ACTIONS, _WEIGHTS)[0]
            self.say(action.__name__)
            try:
                action(self)
            except StorageError as error:
                self.fail(error)
        self.drain()
        self.finish()

    def publish(self) -> None:
        world, rng = self.world, self.rng
        actions = [world.begin, world.write_outside]
        if world.open:
            chosen = rng.choice(world.open)
            actions += [lambda: world.write(chosen)] * 4
            actions += [lambda: world.commit(chosen)] * 2 + [lambda: world.roll_back(chosen)]
            actions += [lambda: world.lose(chosen)]
        rng.choice(actions)()

    def create(self) -> None:
        self.world.create(self.rng.choice(COLLECTIONS))

    def delete(self) -> None:
        """Delete a journal, but none that a checkpoint shows that has to be replayed."""
        if self.is_in_hand:
            self.commit()
        if self.prepared is None:
            self.world.delete()
            if self.rng.random() < 0.5:
                self.create()

    def watch(self) -> None:
        known = self.run.known_heads
        self.run.watch(self.world.changes_since(known, lags=self._watch_lags))

    def deliver(self) -> None:
        for _ in range(self.rng.choice([1, 5, 20])):
            self.deliver_one()

    def deliver_one(self) -> bool:
        """Deliver a message of any pipe, if there is one. Journals may answer late, or twice."""
        if not (busy := self.run.busy_pipes()):
            return False
        pipe = self.rng.choice(busy)
        if pipe == self._slow_pipe and self.rng.random() < 0.97:
            return True
        self.say(f"  deliver {self._trace.pipe(pipe)}")
        if pipe.receiver.role is Role.JOURNAL and self.rng.random() < self._trouble:
            kind = self.rng.choice([Kind.LATE_FETCH, Kind.REPEATED_ANSWER])
            self.counts[kind] += 1
            fetches = self.run.pipes[pipe]
            fetches.append(fetches[0])
            if kind is Kind.LATE_FETCH:
                fetches.popleft()
                return True
        self.run.deliver(pipe)
        return True

    def pass_time(self) -> None:
        self.world.pass_time(self.rng.choice([1, 10, 100]))
        for member in range(len(self.run.members)):
            self.run.advance(member)

    def poll(self) -> None:
        """Take the next checkpoint and read it. Store it now or with the next poll, so that a crash
        may come first."""
        if self.is_in_hand:
            self.commit()
            return
        limit = self.rng.choice([None, None, 1, 5])
        may_be_empty = self.rng.random() < self.empty_share
        if not self.is_draining and self.rng.random() < 0.7:
            self.run.give_up()
        delta = self.run.poll(limit, may_be_empty=may_be_empty)
        if delta is None:
            if self.rng.random() < 0.5:
                self.run.release()
            return
        if self.prepared is not None:
            assert delta.encode() == self.prepared.encode(), "replay equals read_through"
        # Nobody deletes a journal of a cut, or one that a Session has to replay.
        deletes = not (self.is_draining or self.prepared) and self.rng.random() < 0.05
        if deletes:
            self.world.delete()
            self.watch()
            while self.deliver_one():
                pass
        self.read(delta)
        self.prepared = delta
        self.is_in_hand = True
        if deletes or self.rng.random() < 0.6:
            self.commit()

    def read(self, delta: Checkpoint) -> None:
        shown = self.oracle.shown(self.run.read(delta))
        if self.prepared is not None:
            assert shown == self.prepared_documents, "the replay shows the same documents"
        else:
            self.oracle.check_unseen(shown)
        self.oracle.check_commits(delta, {**self.last_commit.journals, **delta.journals}, shown)
        if self.rng.random() < 0.3:
            self.counts[Kind.READ_AGAIN] += 1
            self.oracle.check_ordered(self.run.read_again(ordered=True), shown)
        self.prepared_documents = shown

    def commit(self) -> None:
        assert self.prepared is not None
        self.last_commit = Checkpoint.decode(self.last_commit.merge(self.prepared).encode())
        self.oracle.commit(self.prepared_documents)
        self.prepared = None
        self.is_in_hand = False
        if self.rng.random() < 0.7:
            self.run.release()
        else:
            self.counts[Kind.LATE_RELEASE] += 1

    def crash(self) -> None:
        self.commit_what_cannot_be_replayed()
        self.counts[Kind.CRASH] += 1
        self.is_in_hand = False
        if self._bindings_change and self.rng.random() < 0.5:
            changed = self.bindings.change(self.replayed_bindings())
            self.counts[Kind.REPLAY_CHANGED] += changed and self.prepared is not None
        self.open()

    def interrupt(self) -> None:
        """Crash while the consumer has a checkpoint that it has not stored, if it gets one soon."""
        for _ in range(_PATIENCE):
            if self.is_in_hand:
                self.crash()
                return
            self.watch()
            self.deliver()
            self.pass_time()
            self.poll()

    def fail(self, error: StorageError) -> None:
        """Check that a hard limit ended the Session, and open one that has more room."""
        self.say(f"failed: {error}")
        conditions = self.run.conditions
        if "transactions are pending" in error.what:
            assert conditions.pending_hard_max < PENDING_MAX, f"there was room: {error}"
            self.counts[Kind.MUCH_PENDING] += 1
        else:
            needed_bytes = max(member.queue.space.needed_bytes for member in self.run.members)
            assert needed_bytes > conditions.hard_bytes, f"there was room: {error}"
            is_retryable = isinstance(error, QueueFullError)
            self.counts[Kind.QUEUE_FULL if is_retryable else Kind.TOO_LARGE] += 1
        self.commit_what_cannot_be_replayed()
        self.is_in_hand = False
        self.open(calm=True)

    def replayed_bindings(self) -> set[str]:
        """Return the bindings without which no Session can replay the prepared checkpoint."""
        if self.prepared is None:
            return set()
        names = {**self.last_commit.bindings, **self.prepared.bindings}
        places = self.prepared.frontier.producers["place"].tolist()
        return {names[BindingTag(place & TAG_MAX)] for place in places}

    def commit_what_cannot_be_replayed(self) -> None:
        """Store a checkpoint that shows a deleted journal: the Session did not know of that yet."""
        if self.prepared is None or not self.is_in_hand:
            return
        assignment, there = self.run.session.assignment, self.world.there()
        places = self.prepared.frontier.producers["place"].tolist()
        if any(assignment.journal_id(place) not in there for place in places):
            self.commit()

    def drain(self) -> None:
        """Check that a Session of a cut shows the cut and nothing else, and ends."""
        self.say("drain")
        self.commit_what_cannot_be_replayed()
        self.is_in_hand = False
        self.is_draining = True
        self.open(is_cut=True, calm=True)
        cut = self.oracle.all_committed()
        self.run.watch()
        for _ in range(20_000):
            if self.rng.random() < 0.1:
                self.publish()
            if self.rng.random() < 0.1:
                self.pass_time()
            self.deliver_one()
            self.poll()
            if self.run.session.is_over and not (self.is_in_hand or self.run.answer):
                break
        assert self.run.session.is_over, "the cut has no end"
        self.oracle.check_cut(cut)
        while self.deliver_one():
            pass
        assert self.run.session.next_checkpoint() is None, "nothing follows the end of a cut"
        self.is_draining = False
        self.open(calm=True)

    def finish(self) -> None:
        """Check that all committed documents are shown once nothing is in the way."""
        for transaction in list(self.world.open):
            self.world.roll_back(transaction)
        self.settle(empty_share=0.0)
        assert self.prepared is None
        self.oracle.check_complete()
        self.settle(empty_share=1.0)
        assert not self.run.held_bytes(), "a Queue keeps what nobody needs"

    def settle(self, *, empty_share: float) -> None:
        """Go on until nothing moves; `empty_share` of the checkpoints may be empty."""
        self.empty_share = empty_share
        self.run.give_up()
        for _ in range(10_000):
            self.world.pass_time(200)
            moved = self.run.watch()
            while self.deliver_one():
                moved = True
            for member in range(len(self.run.members)):
                self.run.advance(member)
            before = self.oracle.checkpoints
            self.poll()
            if self.is_in_hand:
                self.commit()
            self.run.release()
            if not (moved or before < self.oracle.checkpoints or self.run.busy_pipes()):
                break


_ACTIONS: list[Callable[[Simulator], None]] = [
    Simulator.publish,
    Simulator.create,
    Simulator.delete,
    Simulator.watch,
    Simulator.deliver,
    Simulator.pass_time,
    Simulator.poll,
    Simulator.crash,
    Simulator.interrupt,
]
_WEIGHTS = [40, 1, 1, 8, 25, 3, 10, 4, 2]


def _run(seed: int, steps: int, say: Say | None) -> Counter[StrEnum]:
    simulator = Simulator(seed, say=say)
    simulator.simulate(steps)
    return Counter(simulator.counts)


SIMULATION = Simulation("headrace.testing.shuffle.simulator", "a shuffle", Kind, STEPS, _run)


if __name__ == "__main__":
    # Other processes know this module by its name.
    from headrace.testing.shuffle import simulator

    sys.exit(main(simulator.SIMULATION))

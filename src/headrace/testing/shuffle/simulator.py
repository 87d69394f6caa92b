"""Session, Slices, Queues and readers with no threads: random orders, delays, crashes, topologies.

    python -m headrace.testing.shuffle.simulator SEED [STEPS]

runs one seed again and prints every step.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from random import Random

import numpy as np
from msgspec.structs import replace

from headrace.clock import CLOCK_MAX, ZERO
from headrace.errors import UsageError
from headrace.frontier import TAG_MAX, BindingTag
from headrace.journal.names import Selector
from headrace.shuffle.binding import Source, Sources
from headrace.shuffle.checkpoint import Checkpoint
from headrace.shuffle.routing import Range, split_evenly
from headrace.testing.shuffle.run import Run
from headrace.testing.shuffle.world import SCHEMA, Document, World, batch_of

COLLECTIONS = ("a", "b", "c")
QUADRANTS = [
    Range(0, (1 << 31) - 1, 0, (1 << 31) - 1),
    Range(0, (1 << 31) - 1, 1 << 31, (1 << 32) - 1),
    Range(1 << 31, (1 << 32) - 1),
]


def sources_of(rng: Random) -> Sources:
    """Bindings of the collections; sometimes two of one, or in several cohorts."""
    made = []
    for tag, collection in enumerate(rng.choice([COLLECTIONS, ("a", "b"), ("a", "a", "b")])):
        lane = rng.choice([0, 0, 0, 1])
        made.append(
            Source(
                BindingTag(tag),
                f"{collection}.{tag}",
                collection,
                Selector(collection),
                rng.choice([("key",), ()]),
                SCHEMA.serialize().to_pybytes(),
                (),
                lane,
                lane,
                rng.choice([0, 0, 20]) if lane else 0,
                ZERO,
                CLOCK_MAX,
            )
        )
    lanes = sorted({source.lane for source in made})
    return Sources(replace(s, lane=lanes.index(s.lane), cohort=lanes.index(s.lane)) for s in made)


class Simulator:
    def __init__(
        self, seed: int, *, hints: bool = True, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self.rng = Random(seed)
        self.say = say
        self.world = World(self.rng, COLLECTIONS, self.rng.choice([1, 2, 4]), hints)
        self.sources = sources_of(self.rng)
        self.last_commit = Checkpoint()
        self.prepared: Checkpoint | None = None
        self.prepared_documents: set[tuple[BindingTag, int]] = set()
        self.seen: dict[tuple[BindingTag, int], int] = {}
        """The checkpoint that each document was shown in."""
        self.checkpoints = 0
        self.crashes = 0
        self.order: dict[tuple[BindingTag, int, int], int] = {}
        self.run = self.open()

    def open(self, *, is_cut: bool = False) -> Run:
        count = self.rng.choice([1, 2, 2, 3])
        ranges = QUADRANTS if count == 3 and self.rng.random() < 0.5 else split_evenly(count)
        self.say(f"open with {count} members")
        about = self.world, self.sources, self.rng, self.say, ranges
        kept = self.rng.choice([None, None, 10, 60])
        return Run(*about, self.last_commit, self.prepared, is_cut=is_cut, kept_rows_max=kept)

    # -- what happens ----------------------------------------------------------------------

    def simulate(self, steps: int) -> None:
        for _ in range(steps):
            deed = self.rng.choices(_DEEDS, _WEIGHTS)[0]
            self.say(deed.__name__)
            deed(self)
        self.drain()
        self.finish()

    def publish(self) -> None:
        world, rng = self.world, self.rng
        deeds = [world.begin, world.write_outside]
        if world.open:
            chosen = rng.choice(world.open)
            deeds += [lambda: world.write(chosen)] * 3
            deeds += [lambda: world.commit(chosen)] * 2 + [lambda: world.roll_back(chosen)]
        rng.choice(deeds)()

    def create(self) -> None:
        self.world.create(self.rng.choice(COLLECTIONS))

    def delete(self) -> None:
        """What a checkpoint shows that is to be replayed must be there."""
        if self.run_has_prepared:
            self.commit()
        if self.prepared is None:
            self.world.delete()

    def watch(self) -> None:
        self.run.watch()

    def deliver(self) -> None:
        for _ in range(self.rng.choice([1, 5, 20])):
            self.run.deliver()

    def pass_time(self) -> None:
        self.world.pass_time(self.rng.choice([1, 10, 100]))
        for member in range(len(self.run.members)):
            self.run.advance(member)

    def poll(self) -> None:
        """Take the next checkpoint, and read it, and commit it: a crash may come before."""
        if self.run_has_prepared:
            self.commit()
            return
        limit = self.rng.choice([None, None, 1, 5])
        delta = self.run.session.next_checkpoint(limit)
        self.run.hold()
        if delta is None:
            return
        self.say(f"  checkpoint {delta.frontier}")
        if self.prepared is not None:
            assert delta.encode() == self.prepared.encode(), "replay equals read_through"
        # A cut does not change, and what is replayed must be there.
        deletes = not (self.is_draining or self.prepared) and self.rng.random() < 0.05
        if deletes:
            self.world.delete()
            self.watch()
            while self.run.deliver():
                pass
        documents = self.run.read(delta)
        self.check(documents, replayed=self.prepared is not None)
        self.check_said(delta)
        self.prepared = delta
        self.run_has_prepared = True
        if deletes or self.rng.random() < 0.6:
            self.commit()

    run_has_prepared = False
    is_draining = False

    def commit(self) -> None:
        assert self.prepared is not None
        self.last_commit = Checkpoint.decode(self.last_commit.merge(self.prepared).encode())
        for document in self.prepared_documents:
            assert document not in self.seen, f"{document} is shown twice"
            self.seen[document] = self.checkpoints
        self.checkpoints += 1
        self.check_atomic()
        self.prepared = None
        self.run_has_prepared = False

    def crash(self) -> None:
        self.commit_what_cannot_be_replayed()
        self.crashes += 1
        self.run_has_prepared = False
        self.run = self.open()

    def commit_what_cannot_be_replayed(self) -> None:
        """A Session may not have seen yet that a journal is deleted when it shows it once more."""
        if self.prepared is None or not self.run_has_prepared:
            return
        reading, there = self.run.session.reading, self.world.there()
        places = self.prepared.frontier.producers["place"].tolist()
        if any(reading.journal_id(at) not in there for at in places):
            self.commit()

    def drain(self) -> None:
        """A Session that is given a cut shows that, nothing else, and says when it is over."""
        self.say("drain")
        self.commit_what_cannot_be_replayed()
        cut = self.all_committed()
        self.run_has_prepared = False
        self.is_draining = True
        self.run = self.open(is_cut=True)
        self.run.watch()
        for _ in range(10_000):
            if self.rng.random() < 0.1:
                self.publish()
            if self.rng.random() < 0.1:
                self.pass_time()
            self.run.deliver()
            self.poll()
            if self.run.session.is_over and not self.run_has_prepared:
                break
        assert self.run.session.is_over, "the cut has no end"
        assert self.seen_and_there() == cut, "exactly the cut is shown"
        while self.run.deliver():
            pass
        assert self.run.session.next_checkpoint() is None, "what is over is over"
        self.is_draining = False
        self.run = self.open()

    def finish(self) -> None:
        """With nothing in the way, everything that is committed is shown."""
        for transaction in list(self.world.open):
            self.world.roll_back(transaction)
        for _ in range(10_000):
            self.world.pass_time(200)
            moved = self.run.watch()
            while self.run.deliver():
                moved = True
            for member in range(len(self.run.members)):
                self.run.advance(member)
            before = self.checkpoints
            self.poll()
            if self.run_has_prepared:
                self.commit()
            if not moved and before == self.checkpoints and not any(self.run.pipes.values()):
                break
        self.check_complete()
        assert not self.run.open_blocks(), "nothing is kept in vain"

    # -- what must hold --------------------------------------------------------------------

    def documents(self) -> dict[int, Document]:
        return {d.number: d for some in self.world.committed.values() for d in some}

    def check(self, by_member: list[list[tuple[BindingTag, int]]], *, replayed: bool) -> None:
        committed = self.documents()
        shown: set[tuple[BindingTag, int]] = set()
        for member, documents in enumerate(by_member):
            last: dict[tuple[BindingTag, int, int], int] = {}
            for binding, number in documents:
                assert (binding, number) not in shown, f"document {number} is shown twice"
                shown.add((binding, number))
                assert number in committed, f"document {number} is not committed"
                document = committed[number]
                stream = binding, document.journal, document.producer
                assert last.get(stream, 0) < document.clock, f"order of {document}"
                last[stream] = document.clock
            self.check_route(member, [(b, committed[number]) for b, number in documents])
        if replayed:
            assert shown == self.prepared_documents, "the replay shows the same documents"
        self.prepared_documents = shown

    def check_said(self, delta: Checkpoint) -> None:
        """Everything is shown that a checkpoint says is committed: also if it is deleted by now."""
        shown = self.prepared_documents | self.seen.keys()
        for at, producer, commit, _ in delta.frontier.producers.tolist():
            journal = self.run.session.reading.journal_id(at)
            for document in self.documents().values():
                if (document.journal, document.producer) == (journal, producer):
                    key = BindingTag(at & TAG_MAX), document.number
                    assert document.clock > commit or key in shown, f"{document} is not shown"

    def check_route(self, member: int, documents: Sequence[tuple[BindingTag, Document]]) -> None:
        """Every document is on the member that owns it."""
        for source in self.sources.all:
            mine = [document for binding, document in documents if binding == source.tag]
            clocks = np.array([document.clock for document in mine], np.uint64)
            owners = self.run.router.route(batch_of(mine), source.key, clocks)
            assert (owners == member).all(), f"{mine} are not all of member {member}"

    def check_atomic(self) -> None:
        """Within a cohort, a transaction is shown in one checkpoint or not at all."""
        for cohort in {source.cohort for source in self.sources.all}:
            bindings = [s for s in self.sources.all if s.cohort == cohort]
            for transaction, documents in self.world.documents_of(
                {s.collection for s in bindings}
            ).items():
                names = self.world.journals
                when = {
                    self.seen.get((s.tag, d.number))
                    for d in documents.values()
                    for s in bindings
                    if names[d.journal].name.startswith(f"{s.collection}/")
                }
                assert len(when) == 1, f"transaction {transaction} is shown in parts: {when}"

    def seen_and_there(self) -> set[tuple[BindingTag, int]]:
        there, documents = self.world.there(), self.documents()
        return {key for key in self.seen if documents[key[1]].journal in there}

    def check_complete(self) -> None:
        assert self.prepared is None
        lost = self.all_committed() - self.seen.keys()
        assert not lost, f"documents are lost: {sorted(lost)}"

    def all_committed(self) -> set[tuple[BindingTag, int]]:
        """Under each binding that reads it."""
        return {
            (source.tag, number)
            for source in self.sources.all
            for documents in self.world.documents_of({source.collection}).values()
            for number in documents
        }


_DEEDS: list[Callable[[Simulator], None]] = [
    Simulator.publish,
    Simulator.create,
    Simulator.delete,
    Simulator.watch,
    Simulator.deliver,
    Simulator.pass_time,
    Simulator.poll,
    Simulator.crash,
]
_WEIGHTS = [40, 1, 0.5, 8, 25, 3, 10, 2]


def main(seed: int, steps: int) -> None:
    Simulator(seed, say=print).simulate(steps)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise UsageError("no seed", do=__doc__ or "")
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 120)

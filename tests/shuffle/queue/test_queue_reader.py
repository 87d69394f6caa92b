"""A Queue's reader shows each committed document at one checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pyarrow as pa
import pytest

from headrace.clock import ZERO
from headrace.frontier import BindingTag, place
from headrace.shuffle.block import SpanEnd, decode_block
from headrace.shuffle.queue.queue_reader import (
    BlockEntry,
    BlockLoader,
    Entry,
    QueueReader,
    RetractionEntry,
    StopEntry,
)
from tests.shuffle.builders import block, frontier, head

Pair = tuple[int, int, int, int]
P = place(0, 0)
TAG = BindingTag(0)
SCHEMA = block((P, 1, 1, 1)).schema


@dataclass
class Queue:
    """The file of a Queue, with entries that a test makes, and its reader."""

    reader: QueueReader = field(default_factory=QueueReader)
    entries: list[Entry] = field(default_factory=list)
    blocks: dict[int, pa.RecordBatch] = field(default_factory=dict)
    scanned: int = 0
    number: int = 0
    open: set[int] = field(default_factory=set)
    """The blocks of which more may be shown."""

    def add(self, *pairs: Pair) -> None:
        position = len(self.entries)
        self.entries.append(BlockEntry(position, head(*pairs)))
        self.blocks[position] = block(*pairs)

    def retract(
        self, first: int, last: int, last_commit: int = 0, key: tuple[int, int] = (P, 1)
    ) -> None:
        ended = SpanEnd(*key, first, last, False, last_commit)
        self.entries.append(RetractionEntry(len(self.entries), (ended,)))

    def stop(self, *places: int, last_checkpoint: int) -> None:
        self.entries.append(StopEntry(len(self.entries), places, last_checkpoint))

    def show(self, *commits: tuple[int, int, int, int]) -> list[int]:
        """Return the clocks of the documents that a checkpoint with these commits shows."""
        self.number += 1
        fresh = self.entries[self.scanned :]
        self.scanned = len(self.entries)
        shown, closed = self.reader.advance(fresh, frontier(*commits), self.number)
        self.open |= {e.position for e in fresh if isinstance(e, BlockEntry)}
        assert self.open >= set(closed)
        self.open -= set(closed)
        loader = BlockLoader(lambda position: self.blocks[position].serialize(), {TAG: SCHEMA})
        return [
            clock
            for each in shown
            for _, body in loader.encoded(each)
            for clock in decode_block(body, SCHEMA)["doc"].to_pylist()
        ]


def commit(clock: int, producer: int = 1) -> tuple[int, int, int, int]:
    return 0, 0, producer, clock


# proves G6
def test_nothing_is_shown_before_its_commit() -> None:
    queue = Queue()
    queue.add((P, 1, 10, 12))
    assert queue.show() == []
    assert queue.show(commit(9)) == []
    assert min(queue.open) == 0
    assert queue.show(commit(12)) == [10, 11, 12]
    assert queue.open == set()
    assert queue.show(commit(20)) == []


# proves G6, G11
def test_a_block_is_shown_in_parts_as_its_producers_commit() -> None:
    queue = Queue()
    queue.add((P, 1, 10, 12), (P, 2, 20, 21))
    assert queue.show(commit(11)) == [10, 11]
    assert queue.show(commit(21, 2)) == [20, 21]
    assert min(queue.open) == 0
    assert queue.show(commit(12)) == [12]
    assert queue.open == set()


def test_a_commit_above_everything_shows_the_block_as_it_is() -> None:
    queue = Queue()
    queue.add((P, 1, 10, 12), (P, 2, 20, 21))
    (shown,) = queue.reader.advance(queue.entries, frontier(commit(50), commit(21, 2)), 1).shown
    assert shown.whole


# proves G6
@pytest.mark.parametrize("when", ["before", "with", "after"])
def test_what_is_rolled_back_is_never_shown(when: str) -> None:
    """`C10 C11 ACK5 C20 ACK20`: the retraction comes before, with or after the commit."""
    queue = Queue()
    queue.add((P, 1, 10, 11))
    if when == "before":
        queue.retract(10, 11, 5)
        assert queue.show() == []
        assert queue.open == set()
    queue.add((P, 1, 20, 20))
    if when == "after":
        assert queue.show() == []
    if when != "before":
        queue.retract(10, 11, 5)
    assert queue.show(commit(20)) == [20]
    assert queue.open == set()


# proves G6
def test_a_block_may_hold_committed_and_retracted_documents_of_one_producer() -> None:
    queue = Queue()
    queue.add((P, 1, 10, 19))
    queue.retract(13, 15, 12)
    assert queue.show(commit(12)) == [10, 11, 12]
    assert min(queue.open) == 0
    assert queue.show(commit(19)) == [16, 17, 18, 19]
    assert queue.open == set()


# proves G6
def test_the_end_of_a_block_may_be_retracted_after_its_beginning_was_shown() -> None:
    queue = Queue()
    queue.add((P, 1, 10, 19))
    assert queue.show(commit(14)) == [10, 11, 12, 13, 14]
    queue.retract(15, 19, 14)
    assert queue.show() == []
    assert queue.open == set()


def test_a_retraction_does_not_end_the_wait_for_what_is_committed_before_it() -> None:
    queue = Queue()
    queue.add((P, 1, 10, 19))
    queue.retract(15, 19, 14)
    assert queue.show() == []
    assert min(queue.open) == 0
    assert queue.show(commit(14)) == [10, 11, 12, 13, 14]
    assert queue.open == set()


def test_a_block_of_which_every_part_was_retracted_is_not_kept() -> None:
    """The producer's last commit came before the Session, so no checkpoint contains it."""
    queue = Queue()
    queue.add((P, 1, 1479, 1480))
    queue.add((P, 1, 1500, 1502))
    queue.retract(1479, 1479, last_commit=1469)
    queue.retract(1480, 1600, last_commit=1469)
    assert queue.show() == []
    assert not queue.open


def test_a_retraction_concerns_one_producer_in_one_place() -> None:
    queue = Queue()
    other = place(1, 0)
    queue.add((P, 1, 10, 11), (P, 2, 10, 11), (other, 1, 10, 11))
    queue.retract(10, 11)
    assert queue.show(commit(11), commit(11, 2), (1, 0, 1, 11)) == [10, 11, 10, 11]


def test_the_oldest_open_block_is_what_must_be_kept() -> None:
    queue = Queue()
    queue.add((P, 1, 10, 10))
    queue.add((P, 2, 11, 11))
    queue.add((P, 1, 12, 12))
    assert queue.show(commit(10)) == [10]
    assert min(queue.open) == 1
    assert queue.show(commit(11, 2)) == [11]
    assert min(queue.open) == 2


# proves G12
def test_retractions_are_forgotten_with_the_blocks_they_concern() -> None:
    """This holds although the producer always has its next transaction open."""
    queue = Queue()
    queue.add((P, 1, 1, 1))
    for clock in range(2, 200):
        queue.retract(clock - 1, clock - 1)
        queue.add((P, 1, clock, clock))
        assert queue.show() == []
    assert sum(map(len, queue.reader._retracted.values())) < 3


# proves G12
def test_a_retraction_of_nothing_that_is_open_is_not_kept() -> None:
    queue = Queue()
    for clock in range(1, 200):
        queue.add((P, 1, clock, clock))
        assert queue.show(commit(clock)) == [clock]
        queue.retract(clock + 1000, clock + 1000, clock)
        queue.retract(clock, clock, key=(P, clock + 1))
    assert queue.show() == []
    assert not queue.reader._retracted


# proves G12
def test_nothing_is_kept_of_a_place_that_is_stopped() -> None:
    queue = Queue()
    queue.add((P, 1, 10, 12), (P, 2, 10, 12))
    queue.retract(10, 11, 9)
    assert queue.show() == []
    assert queue.open == {0}
    queue.stop(P, last_checkpoint=1)
    assert queue.show() == []
    assert queue.open == set()
    assert not queue.reader._by_key
    assert not queue.reader._retracted
    assert not queue.reader._stopping


@pytest.mark.parametrize("last", [1, 2, 3])
def test_a_place_that_is_stopped_is_shown_up_to_the_last_checkpoint_that_has_it(last: int) -> None:
    """This holds also if the stop comes before the reader reaches that checkpoint."""
    queue = Queue()
    queue.add((P, 1, 10, 19))
    queue.stop(P, last_checkpoint=last)
    seen = [clock for n in range(10, 10 + last) for clock in queue.show(commit(n))]
    assert seen == list(range(10, 10 + last))
    assert queue.open == set()
    assert queue.show(commit(19)) == []


def test_of_a_block_only_the_rows_of_the_stopped_place_are_gone() -> None:
    queue = Queue()
    other = place(1, 0)
    queue.add((P, 1, 10, 11), (other, 1, 20, 21))
    queue.stop(P, last_checkpoint=0)
    assert queue.show() == []
    assert queue.open == {0}
    assert queue.show((1, 0, 1, 21)) == [20, 21]
    assert queue.open == set()


@dataclass
class Producer:
    clock: int = 0
    open_from: int | None = None
    commits: list[int] = field(default_factory=list)
    published: int = ZERO
    retracted: set[int] = field(default_factory=set)


class History:
    """Producers that commit and roll back, and what the reader must show of them."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.queue = Queue()
        self.keys = [(journal, producer) for journal in (0, 1) for producer in (1, 2)]
        self.producers = {key: Producer() for key in self.keys}
        self.pending: dict[tuple[int, int], tuple[int, int]] = {}
        self.written: dict[tuple[int, int], list[int]] = {key: [] for key in self.keys}
        self.seen: set[tuple[tuple[int, int], int]] = set()
        self.stopped: dict[int, int] = {}

    def stop(self, key: tuple[int, int]) -> None:
        """Stop a journal. The next checkpoint may still show its documents, or none may."""
        journal = key[0]
        if journal not in self.stopped:
            self.end_block()
            self.stopped[journal] = self.queue.number + self.rng.randint(0, 1)
            self.queue.stop(place(journal, 0), last_checkpoint=self.stopped[journal])

    def write(self, key: tuple[int, int]) -> None:
        producer = self.producers[key]
        if key[0] in self.stopped:
            return
        if key in self.pending and self.rng.random() < 0.5:
            self.end_block()
        if key not in self.pending:
            producer.clock += self.rng.randint(1, 3)
        count = self.rng.randint(1, 4)
        first = producer.clock if key not in self.pending else producer.clock + 1
        if producer.open_from is None:
            producer.open_from = first
        producer.clock = first + count - 1
        self.written[key] += range(first, first + count)
        begin, _ = self.pending.get(key, (first, 0))
        self.pending[key] = begin, producer.clock

    def end(self, key: tuple[int, int]) -> None:
        producer = self.producers[key]
        if producer.open_from is None or key[0] in self.stopped:
            return
        if self.rng.random() < 0.5:
            producer.commits.append(producer.clock)
        else:
            self.end_block()
            producer.retracted |= set(range(producer.open_from, producer.clock + 1))
            last_commit = producer.commits[-1] if producer.commits else 0
            self.queue.retract(
                producer.open_from, producer.clock, last_commit, (place(key[0], 0), key[1])
            )
        producer.open_from = None

    def end_block(self) -> None:
        """Make a block of what was written since the last one."""
        if self.pending:
            self.queue.add(*((place(j, 0), p, *span) for (j, p), span in self.pending.items()))
            self.pending = {}

    def publish(self, everything: bool = False) -> None:
        self.end_block()
        moved = []
        for key, producer in self.producers.items():
            later = [clock for clock in producer.commits if clock > producer.published]
            is_shown = self.queue.number < self.stopped.get(key[0], 1 << 60)
            if later and is_shown and (everything or self.rng.random() < 0.6):
                producer.published = later[-1] if everything else self.rng.choice(later)
                moved.append((key[0], 0, key[1], producer.published))
        shown = self.queue.show(*moved)
        expected = []
        for key, producer in self.producers.items():
            for clock in self.written[key]:
                visible = clock <= producer.published and clock not in producer.retracted
                if visible and (key, clock) not in self.seen:
                    self.seen.add((key, clock))
                    expected.append(clock)
        assert sorted(shown) == sorted(expected)


# proves G6, G7, G12
@pytest.mark.parametrize("seed", range(150))
def test_random_histories_show_each_committed_document_once(seed: int) -> None:
    history = History(Random(seed))
    for _ in range(60):
        key = history.rng.choice(history.keys)
        steps = [lambda k=key: history.write(k)] * 4 + [lambda k=key: history.end(k)] * 2
        history.rng.choice([*steps, history.publish])()
        if history.rng.random() < 0.01:
            history.stop(key)
    for key in history.keys:
        history.end(key)
    history.publish(everything=True)
    assert history.seen
    assert history.queue.open == set()
    assert not history.queue.reader._retracted
    assert not history.queue.reader._by_key

"""What a Slice fetches: in order, within its room, and without ever getting stuck."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from headrace.clock import Clock
from headrace.ids import JournalId, Offset, Producer
from headrace.journal.contract import Frame, until_full
from headrace.journal.sequencer import Flags
from headrace.settings import MIB
from headrace.shuffle.binding import INFINITE, Source
from headrace.shuffle.messages import ReadStart
from headrace.shuffle.slice.effects import Effect, Fetch, SendBlock
from headrace.shuffle.slice.journal_read import Phase, Read
from headrace.shuffle.slice.read_ahead import ReadAhead
from headrace.shuffle.slice.state import Limits
from tests.kinds import seeds
from tests.shuffle.builders import documents, frames, source
from tests.shuffle.slice.scripted_slice import ScriptedSlice, only, sent

NEVER = 1 << 60
DELAY = 100


def backlog(journal: int, clocks: Sequence[int], size: int) -> list[Frame]:
    """Return a frame of `size` bytes for each clock; clock 0 rolls back what is open."""
    return [
        Frame(
            JournalId(journal),
            Offset(at * size),
            Offset((at + 1) * size),
            Producer(journal),
            Clock(clock),
            int(clock > 0),
            0,
            Flags.OUTSIDE if clock else Flags.ACK,
            documents(clock, int(clock > 0)),
            size,
        )
        for at, clock in enumerate(clocks)
    ]


class Fetched(ScriptedSlice):
    """A Slice whose fetches are answered one at a time, in any order."""

    def __init__(self, seed: int, sources: Sequence[Source], limits: Limits, now: int) -> None:
        super().__init__(sources, limits=limits, now=now)
        self.rng = Random(seed)
        self.asked: list[Fetch] = []
        self.frames_fetched = 0
        self.most_bytes = 0
        """The most bytes that were here and being fetched at any time."""

    def advance(self) -> list[Effect]:
        effects = self.state.advance(Clock(self.now))
        self.effects += effects
        self.asked += only(effects, Fetch)
        self._answer(effects, self.effects)
        self.most_bytes = max(self.most_bytes, self.here_bytes() + self.asked_bytes())
        return effects

    def here_bytes(self) -> int:
        return sum(read.frames_bytes for read in self.state.reads.values())

    def asked_bytes(self) -> int:
        return sum(each.bytes for fetch in self.asked for each in self.found(fetch))

    def found(self, fetch: Fetch) -> list[Frame]:
        of_journal = self.frames[fetch.place]
        found = (each for each in of_journal if fetch.offset <= each.offset < fetch.through)
        return until_full(found, fetch.bytes_max, lambda frame: frame.bytes)

    def answer_one(self) -> None:
        fetch = self.asked.pop(self.rng.randrange(len(self.asked)))
        self.frames_fetched += len(self.found(fetch))
        self.answer(fetch)

    def step(self) -> bool:
        """Give one answer, or let time pass if there is none. Return False if nothing is left."""
        effects = self.advance()
        self.state.validate()
        answers = [fetch for fetch in self.asked if fetch.place not in self.held]
        if answers:
            fetch = self.rng.choice(answers)
            self.asked.remove(fetch)
            self.answer(fetch)
        elif not effects:
            wake_at = self.state.wake_at()
            self.now = max(self.now, wake_at or 0)
            return wake_at is not None
        return True

    def settle(self) -> None:
        """Answer fetches until there is nothing left to do at this time."""
        while self.advance() or self.asked:
            self.state.validate()
            for _ in range(self.rng.choice([0, 1, 1, 5])):
                if self.asked:
                    self.answer_one()


def clocks_of(rng: Random, count: int) -> list[int]:
    """Return ascending clocks; some are followed by 0, a rollback of nothing."""
    clocks = sorted(rng.sample(range(1, 10_000), count))
    return [clock for each in clocks for clock in ([each, 0] if rng.random() < 0.1 else [each])]


def due(made: Sequence[Source], taken: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return lane and adjusted clock of each (binding, clock) that was taken, in order."""
    return [(made[tag].lane, made[tag].adjusted(clock)) for tag, clock in taken]


def taken_from(slice: ScriptedSlice) -> list[tuple[int, int]]:
    """Return binding and clock of each block that was sent, in order."""
    heads = [block.head for block in only(slice.effects, SendBlock)]
    return [(head.binding, int(head.pair_rows()[0]["first"])) for head in heads]


# proves G8, G12
@pytest.mark.parametrize("seed", seeds(100, deep=300))
def test_however_little_room_there_is_everything_is_taken_in_order(seed: int) -> None:
    rng = Random(seed)
    made = [
        source(0, "a"),
        source(1, "b", delay=rng.choice([0, 500])),
        source(2, "c", lane=rng.choice([0, 1])),
    ]
    limits = Limits(
        fetch_bytes=rng.choice([1, 30, 400]),
        ahead_bytes=rng.choice([1, 50, 300, 2000]),
        cycle_documents=1,
        block_documents=1,
        credit_bytes=rng.choice([1, 1 << 20]),
        patience=NEVER,
    )
    slice = Fetched(seed, made, limits, now=100_000)
    count = 0
    sizes = []
    for tag in range(rng.choice([1, 3, 12])):
        clocks = clocks_of(rng, rng.choice([1, 5, 30]))
        sizes.append(rng.choice([1, 10, 50, 200]))
        slice.start(backlog(tag + 1, clocks, sizes[-1]), tag=tag, binding=tag % 3)
        count += sum(clock > 0 for clock in clocks)
    slice.settle()
    taken = due(made, taken_from(slice))
    assert taken == sorted(taken)
    assert len(taken) == count
    one_fetch = limits.fetch_bytes + max(sizes)
    if limits.fetch_bytes >= max(sizes):
        # Otherwise frames are larger than a Slice can expect before it has seen one.
        room = max(limits.ahead_bytes, one_fetch)
        assert slice.most_bytes <= room * slice.sources.lanes
    assert slice.state._lanes[0].read_ahead.held_bytes == 0


# proves G12
def test_thousands_of_journals_are_fetched_within_the_room_of_their_lane() -> None:
    slice = ScriptedSlice()
    for tag in range(5000):
        slice.start([], tag=tag)
        slice.state.head(slice.state.reads[tag << 32].place, Offset(64 * MIB))
    fetches = only(slice.state.advance(Clock(slice.now)), Fetch)
    assert sum(each.bytes_max for each in fetches) <= Limits().ahead_bytes
    # Nobody knows their frames yet, so each may bring one of the usual size.
    assert 24 <= len(fetches) <= Limits().ahead_bytes // MIB


# proves G8, G12
@pytest.mark.long
@pytest.mark.parametrize("size", [100, 1_000, 10_000], ids=["fits", "hardly fits", "does not fit"])
def test_thousands_of_journals_are_read_in_order_and_each_frame_is_fetched_a_few_times(
    size: int,
) -> None:
    """Every journal has a frame, then every journal has its next, and so on."""
    journals, each = 2_000, 5
    limits = Limits(fetch_bytes=10_000, ahead_bytes=1_000_000, patience=NEVER, cycle_documents=500)
    slice = Fetched(1, [source()], limits, now=1_000_000)
    for tag in range(journals):
        clocks = [10 + tag + at * journals for at in range(each)]
        slice.start(backlog(tag + 1, clocks, size), tag=tag)
    rounds = 0
    while slice.advance() or slice.asked:
        rounds += 1
        for _ in range(min(32, len(slice.asked))):
            slice.answer_one()
    clocks = [clock for _, clock, _ in sent(slice.effects)]
    assert clocks == list(range(10, 10 + journals * each))
    assert slice.most_bytes <= limits.ahead_bytes
    assert slice.frames_fetched <= 4 * journals * each
    # The Slice fetches many at once.
    assert rounds <= slice.frames_fetched / 8


# proves G5, G12
@pytest.mark.parametrize("seed", seeds(80, deep=200))
def test_whatever_stalls_grows_or_is_not_due_the_others_are_read_to_their_heads(seed: int) -> None:
    """Only answers drive the Slice, and the times at which it wants to be called."""
    rng = Random(seed)
    made = [source(0, "a", delay=rng.choice([0, 2000])), source(1, "b", lane=rng.choice([0, 1]))]
    limits = Limits(
        fetch_bytes=rng.choice([1, 30, 400]),
        ahead_bytes=rng.choice([1, 50, 300]),
        cycle_documents=rng.choice([1, 100]),
        patience=rng.choice([1, 50, 5000]),
    )
    slice = Fetched(seed, made, limits, now=rng.choice([0, 5_000, 20_000]))
    whole: dict[int, list[Frame]] = {}
    for tag in range(rng.choice([2, 8])):
        clocks = clocks_of(rng, rng.choice([1, 5, 30]))
        known = backlog(tag + 1, clocks, rng.choice([1, 10, 50, 200]))
        at = slice.start(known[: rng.randint(1, len(known))], tag=tag, binding=tag % 2)
        whole[at] = known
    slice.held = set(rng.sample(list(whole), rng.randint(0, len(whole) // 2)))
    while slice.step():
        at = rng.choice(list(whole))
        if rng.random() < 0.1 and (more := whole[at][len(slice.frames[at]) :]):
            slice.grow(at, more[: rng.randint(1, len(more))])
    for held in (slice.held, set[int]()):
        slice.held = held
        while slice.step():
            pass
        for at, read in slice.state.reads.items():
            assert at in held or read.taken == read.head, (at, read.phase)
    assert slice.state.is_settled
    assert all(lane.read_ahead.held_bytes == 0 for lane in slice.state._lanes)


def test_a_stalled_journal_that_fills_the_room_starves_nobody() -> None:
    limits = Limits(fetch_bytes=30, ahead_bytes=1, patience=50)
    slice = ScriptedSlice(limits=limits, now=1000)
    stalled = {slice.start(backlog(tag + 1, [10, 20], 10), tag=tag) for tag in range(3)}
    others = [slice.start(backlog(tag + 1, [30, 40], 10), tag=tag) for tag in range(3, 6)]
    slice.held = stalled
    for now in range(1000, 2000, 50):
        slice.run(now)
    assert all(slice.state.reads[at].taken == 20 for at in others)
    slice.held = set()
    slice.run(2000)
    assert all(slice.state.reads[at].taken == 20 for at in stalled)
    assert slice.state.is_settled


# proves G12
def test_what_is_stopped_takes_no_room() -> None:
    limits = Limits(fetch_bytes=100, ahead_bytes=200, credit_bytes=1, cycle_documents=1)
    for seed in range(50):
        slice = Fetched(seed, [source()], limits, now=100_000)
        slice.grants = False
        places = [
            slice.start(backlog(tag + 1, clocks_of(slice.rng, 9), 20), tag=tag) for tag in range(6)
        ]
        slice.settle()
        assert slice.here_bytes()
        slice.rng.shuffle(places)
        for at in places:
            slice.advance()
            slice.state.stop([at], 0)
        assert slice.state._lanes[0].read_ahead.held_bytes == 0
        slice.asked.clear()
        assert only(slice.advance(), Fetch) == []


# -- read delays -------------------------------------------------------------------------------


def test_frames_that_come_due_one_by_one_are_fetched_once() -> None:
    clocks = range(1000, 3000, 10)
    slice = ScriptedSlice([source(delay=DELAY)], now=1)
    at = slice.start(frames(" ".join(f"O{clock}" for clock in clocks)))
    slice.run(1)
    assert slice.state.reads[at].phase is Phase.GATED
    for clock in clocks:
        assert sent(slice.run(clock + DELAY - 1)) == []
        assert sent(slice.run(clock + DELAY)) == [(0, clock, clock)]
    assert len(only(slice.effects, Fetch)) == 1


# proves G8, G12
@pytest.mark.parametrize("ahead_bytes", [1, 35, 1000])
def test_frames_that_are_not_due_give_way_to_those_that_are(ahead_bytes: int) -> None:
    """They also make room for frames of later clocks that have no delay."""
    limits = Limits(fetch_bytes=30, ahead_bytes=ahead_bytes)
    slice = ScriptedSlice(
        [source(0, "later", delay=DELAY), source(1, "now")], limits=limits, now=50
    )
    gated = slice.start(frames("O10 O20 O30 O40", journal=1), tag=0, binding=0)
    slice.run()
    free = slice.start(frames("O500 O510 O520 O530", journal=2), tag=1, binding=1)
    slice.run()
    assert (slice.state.reads[gated].taken, slice.state.reads[free].taken) == (0, 40)
    assert slice.state.wake_at() == 110
    for clock in (10, 20, 30, 40):
        assert sent(slice.run(clock + DELAY - 1)) == []
        assert sent(slice.run(clock + DELAY)) == [(0, clock, clock)]
    assert slice.state.is_settled


def test_a_read_that_is_not_the_next_takes_no_room_from_frames_that_are_wanted_soon() -> None:
    """The frame of clock 30 is wanted before that of clock 40, which is being fetched."""
    ahead = ReadAhead(10, 35, NEVER, lambda *_: 10, lambda _: None)
    thirty, ten, forty, twenty = (unfetched(place, place) for place in (30, 10, 40, 20))
    ahead.grown(thirty)
    assert ahead.fetch(Clock(0), INFINITE) == [thirty]
    ahead.arrived(thirty, frames("O30", journal=30), Offset(10))
    ahead.grown(ten)
    ahead.grown(forty)
    assert ahead.fetch(Clock(0), 30) == [ten, forty]
    ahead.grown(twenty)
    assert ahead.fetch(Clock(0), 30) == [], "everything waits for the frame of clock 10"
    assert [waiting.clock for waiting in thirty.frames] == [30]
    ahead.arrived(ten, [], Offset(10))
    assert ahead.fetch(Clock(0), 30) == [twenty]


def unfetched(place: int, clock: int) -> Read:
    """Return a read with one frame of ten bytes, which is not here."""
    start = ReadStart(place, JournalId(place), f"c/{place}", Offset(0), Offset(10), ())
    read = Read(start, source())
    read.unfetched_clock = clock
    return read

"""A read's phases, and rankings of reads."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from random import Random

import pytest

from headrace.clock import Clock
from headrace.errors import HeadraceError
from headrace.ids import JournalId, Offset
from headrace.shuffle.binding import INFINITE
from headrace.shuffle.messages import ReadStart
from headrace.shuffle.slice import journal_read as read_module
from headrace.shuffle.slice.effects import Fetch, SendBlock
from headrace.shuffle.slice.journal_read import TRANSITIONS, Event, Phase, Ranking, Read
from headrace.shuffle.slice.state import Limits
from tests.shuffle.builders import frames, source
from tests.shuffle.slice.scripted_slice import ScriptedSlice, only

Transition = tuple[Phase, Event, Phase]

ALL = {(phase, event, to) for phase, row in TRANSITIONS.items() for event, to in row.items()}


def read(place: int = 0) -> Read:
    return Read(ReadStart(place, JournalId(1), "c/0000", Offset(0), Offset(0)), source())


# -- phases ------------------------------------------------------------------------------------


def test_the_docstring_shows_the_table() -> None:
    rows = re.findall(r"^ +(\w+) +(\w+) +→ (\w+)", read_module.__doc__ or "", re.MULTILINE)
    assert len(rows) == len(ALL)
    assert {(Phase(before), Event[event], Phase(after)) for before, event, after in rows} == ALL


@pytest.mark.parametrize(("phase", "event"), list(product(Phase, Event)))
def test_a_read_goes_through_the_transitions_of_the_table_and_refuses_all_others(
    phase: Phase, event: Event
) -> None:
    moved = read()
    moved.phase = phase
    if event in TRANSITIONS[phase]:
        moved.apply(event)
        assert moved.phase is TRANSITIONS[phase][event]
    else:
        error = f"the read of c/0000 is {phase} and cannot go through {event.name}; report it"
        with pytest.raises(HeadraceError, match=error):
            moved.apply(event)
        assert moved.phase is phase


def test_nothing_but_a_read_itself_assigns_its_phase() -> None:
    for module in Path(read_module.__file__).parent.glob("*.py"):
        assignments = re.findall(r"(\w+)\.phase\s*=[^=]", module.read_text())
        assert assignments == (["self", "self"] if module.name == "journal_read.py" else [])


@pytest.mark.long
def test_every_transition_of_the_table_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made: set[Transition] = set()
    apply = Read.apply

    def record(read: Read, event: Event) -> None:
        before = read.phase
        apply(read, event)
        made.add((before, event, read.phase))

    monkeypatch.setattr(Read, "apply", record)
    for seed in range(30):
        drive(Random(seed))
    assert made == ALL


def drive(rng: Random) -> None:
    """Do to a Slice whatever can happen to it, in any order. Its invariants hold all the time."""
    limits = Limits(
        fetch_bytes=30, ahead_bytes=rng.choice([20, 100]), cycle_documents=1, patience=100
    )
    slice = ScriptedSlice([source(0, "a", delay=200), source(1, "b")], limits=limits, now=0)
    places = []
    for tag in range(6):
        clocks = sorted(rng.sample(range(1, 1000), 8))
        script = " ".join(f"O{clock}" for clock in clocks)
        places.append(slice.start(frames(script, journal=tag + 1), tag=tag, binding=tag % 2))
    fetches: list[Fetch] = []
    for _ in range(120):
        action = rng.choice(["advance", "advance", "answer", "answer", "hold", "release", "stop"])
        if action == "advance":
            slice.now += rng.choice([0, 10, 100])
            effects = slice.state.advance(Clock(slice.now))
            fetches += only(effects, Fetch)
            for block in only(effects, SendBlock):
                slice.give_back(block)
        elif action == "answer" and fetches:
            slice.answer(fetches.pop(rng.randrange(len(fetches))))
        elif action == "hold":
            slice.state.hold([], {0: rng.sample(places, 3)})
        elif action == "release":
            slice.state.hold([])
        elif action == "stop" and rng.random() < 0.3:
            slice.state.stop([rng.choice(places)], 0)
        slice.state.validate()


# -- rankings ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(50))
def test_the_first_is_the_one_of_the_least_rank(seed: int) -> None:
    """A ranking agrees with a dictionary that is sorted."""
    rng = Random(seed)
    reads = [read(place) for place in range(8)]
    ranking, ranks = Ranking(), dict[int, int]()
    for _ in range(300):
        chosen = rng.choice(reads)
        if rng.random() < 0.3:
            ranking.drop(chosen)
            ranks.pop(chosen.place, None)
        else:
            ranks[chosen.place] = rng.randrange(20)
            ranking.put(chosen, ranks[chosen.place])
        least = min(ranks.values(), default=INFINITE)
        assert ranking.least == least
        first = ranking.first
        assert (first is None) == (not ranks)
        assert first is None or ranks[first.place] == least
        assert len(ranking) == len(ranks)
        assert ranking.ranks() == ranks
        assert [each in ranking for each in reads] == [each.place in ranks for each in reads]


# proves G12
def test_reads_that_move_leave_nothing_behind() -> None:
    ranking = Ranking()
    stays, moves = read(1), read(2)
    ranking.put(stays, 0)
    for rank in range(10_000):
        ranking.put(moves, rank + 1)
    assert len(ranking._heap) < 200
    assert ranking.first is stays

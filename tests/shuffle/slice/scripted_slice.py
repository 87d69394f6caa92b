"""A Slice that reads scripted journals, and whose Queues answer when the test says so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from headrace.clock import Clock
from headrace.frontier import place
from headrace.ids import JournalId, Offset, Producer
from headrace.journal.contract import Frame, until_full
from headrace.shuffle.binding import Source, Sources
from headrace.shuffle.block import block_bytes
from headrace.shuffle.messages import ReadStart
from headrace.shuffle.routing import split_evenly
from headrace.shuffle.slice.effects import Effect, Fetch, Report, SendBlock, SendFlush
from headrace.shuffle.slice.state import Limits, SliceState
from tests.shuffle.builders import decode, source

E = TypeVar("E", bound=Effect)


class ScriptedSlice:
    def __init__(
        self,
        sources: Sequence[Source] | None = None,
        *,
        members: int = 1,
        limits: Limits | None = None,
        now: int = 1_000_000,
        offsets_are_bytes: bool = True,
    ) -> None:
        self.sources = Sources(sources or [source()])
        self.members = members
        self.state = SliceState(
            self.sources,
            split_evenly(members),
            decode,
            limits or Limits(),
            (lambda offset, through: through - offset) if offsets_are_bytes else lambda *_: 1 << 40,
        )
        self.now = now
        self.frames: dict[int, list[Frame]] = {}
        self.effects: list[Effect] = []
        """All effects so far."""
        self.held: set[int] = set()
        """Places whose fetches stay unanswered."""
        self.answers_flushes = True
        self.grants = True
        self._fetches: list[Fetch] = []

    def start(
        self,
        frames: list[Frame],
        *,
        tag: int = 0,
        binding: int = 0,
        offset: int = 0,
        producers: tuple[tuple[int, int], ...] = (),
        is_cut: bool = False,
    ) -> int:
        """Start to read journal `tag + 1` under a binding. Return the place."""
        started = place(tag, binding)
        journal = JournalId(tag + 1)
        self.frames[started] = frames
        head = frames[-1].end if frames else Offset(offset)
        known = tuple((Producer(p), Clock(c)) for p, c in producers)
        name = f"{self.sources.by_tag[binding].collection}/{tag:04d}"  # type: ignore[index]
        found = self.sources.of_journal(name)
        self.state.learned(journal, [source.tag for source in found])
        start = ReadStart(started, journal, name, Offset(offset), head, known)
        self.state.start([start], is_cut=is_cut)
        return started

    def grow(self, place: int, frames: list[Frame]) -> None:
        self.frames[place] += frames
        self.state.head(place, frames[-1].end)

    def run(self, now: int | None = None) -> list[Effect]:
        """Advance until nothing is left to do. Return all effects."""
        if now is not None:
            self.now = now
        done: list[Effect] = []
        while True:
            effects = self.state.advance(Clock(self.now))
            self.state.validate()
            done += effects
            self._fetches += [e for e in effects if isinstance(e, Fetch)]
            answered = self._answer(effects, done)
            for fetch in [f for f in self._fetches if f.place not in self.held]:
                self._fetches.remove(fetch)
                self.answer(fetch)
                answered = True
            if not effects and not answered:
                self.effects += done
                return done

    def answer(self, fetch: Fetch) -> None:
        found = (f for f in self.frames[fetch.place] if fetch.offset <= f.offset < fetch.through)
        frames = until_full(found, fetch.bytes_max, lambda frame: frame.bytes)
        self.state.fetched(fetch.number, fetch.place, frames, fetch.through)

    def _answer(self, effects: list[Effect], done: list[Effect]) -> bool:
        answered = False
        for effect in effects:
            if isinstance(effect, SendBlock) and self.grants:
                self.give_back(effect)
                answered = True
            if isinstance(effect, SendFlush) and self.answers_flushes:
                done += self.flushed(effect.number)
                answered = True
        return answered

    def give_back(self, block: SendBlock) -> None:
        """The Queue has written the block, and gives its credit back."""
        size = block_bytes(block.head, block.body)
        self.state.granted(block.member, block.head.lane, size)

    def flushed(self, number: int) -> list[Effect]:
        done: list[Effect] = []
        for member in range(self.members):
            done += self.state.flushed(member, number)
        if self.answers_flushes:
            for effect in done:
                if isinstance(effect, SendFlush):
                    done += self.flushed(effect.number)
        return done


def only(effects: Sequence[Effect], kind: type[E]) -> list[E]:
    return [effect for effect in effects if isinstance(effect, kind)]


def sent(effects: Sequence[Effect]) -> list[tuple[int, int, int]]:
    """Return lane, first and last clock of each (place, producer) of the blocks, in order."""
    return [
        (block.head.lane, first, last)
        for block in only(effects, SendBlock)
        for _, _, first, last, _ in block.head.pair_rows().tolist()
    ]


def commits(effects: Sequence[Effect]) -> list[tuple[int, int]]:
    """Return the producers that were reported, each with its last commit."""
    return [
        (producer, commit)
        for report in only(effects, Report)
        for _, producer, commit, *_ in report.delta.producers.tolist()
    ]

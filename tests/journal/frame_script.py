"""Frames of a journal, written as text: `"C10 C11+3 A5 O20"`."""

from __future__ import annotations

import re
from random import Random

from headrace.clock import Clock
from headrace.ids import JournalId, Offset, Producer
from headrace.journal.contract import Frame
from headrace.journal.sequencer import Flags

_FLAGS = {"O": Flags.OUTSIDE, "C": Flags.CONTINUE, "A": Flags.ACK}


def frames(script: str, producer: int = 1) -> list[Frame]:
    """Parse frames: a letter, the clock, and `+n` for n documents; `p2:` sets the producer."""
    parsed: list[Frame] = []
    for word in script.split():
        match = re.fullmatch(r"(?:p(\d+):)?([OCA])(\d+)(?:\+(\d+))?", word)
        assert match, word
        who, letter, clock, count = match.groups()
        parsed.append(
            frame(
                len(parsed) * 10, int(who or producer), _FLAGS[letter], int(clock), int(count or 1)
            )
        )
    return parsed


def frame(offset: int, producer: int, flags: Flags, clock: int, count: int) -> Frame:
    return Frame(
        JournalId(1),
        Offset(offset),
        Offset(offset + 10),
        Producer(producer),
        Clock(clock),
        0 if flags is Flags.ACK else count,
        0,
        flags,
        b"",
        10,
    )


def random_frames(rng: Random, producers: int, clock_max: int, length: int) -> list[Frame]:
    """Return frames with overlaps, repeats, clocks that go back, and ACKs of any clock."""
    return [
        frame(
            index * 10,
            rng.randint(1, producers),
            rng.choice([Flags.OUTSIDE, Flags.CONTINUE, Flags.CONTINUE, Flags.ACK]),
            rng.randint(0, clock_max),
            rng.randint(1, 4),
        )
        for index in range(length)
    ]

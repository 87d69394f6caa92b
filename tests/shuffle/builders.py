"""Builds sources, frames, blocks and frontiers for tests of one part of a shuffle."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from headrace.clock import CLOCK_MAX, ZERO, Clock
from headrace.frontier import BindingTag, Frontier, JournalProgress, JournalTag, ProducerProgress
from headrace.ids import JournalId, Offset, Producer
from headrace.journal.contract import Frame
from headrace.journal.local.records import ACK_ROW
from headrace.journal.names import Selector
from headrace.journal.sequencer import Flags
from headrace.shuffle.binding import Source
from headrace.shuffle.block import PAIR_ROW, BlockHead
from headrace.testing.shuffle.memory_journal import SCHEMA

_FLAGS = {"O": Flags.OUTSIDE, "C": Flags.CONTINUE, "A": Flags.ACK}
_WORD = re.compile(r"(?:p(\d+):)?([OCA])(\d+)(?:\+(\d+))?")
FRAME_BYTES = 10

Hint = tuple[int, int, int, int]
"""Journal, offset, producer, clock."""


def source(
    tag: int = 0,
    collection: str = "c",
    *,
    name: str = "",
    key: Sequence[str] = ("key",),
    lane: int = 0,
    cohort: int = 0,
    delay: int = 0,
    window: tuple[int, int] = (ZERO, CLOCK_MAX),
    schema: pa.Schema = SCHEMA,
) -> Source:
    return Source(
        BindingTag(tag),
        name or f"{collection}.{tag}",
        collection,
        Selector(collection),
        tuple(key),
        schema.serialize().to_pybytes(),
        (),
        lane,
        cohort,
        delay,
        Clock(window[0]),
        Clock(window[1]),
    )


def documents(first: int, count: int) -> pa.RecordBatch:
    """`count` documents, each numbered by its clock."""
    numbers = np.arange(first, first + count, dtype=np.int64)
    return pa.RecordBatch.from_arrays([pa.array(numbers), pa.array(numbers % 7)], schema=SCHEMA)


def frames(
    script: str,
    *,
    journal: int = 1,
    begin: int = 0,
    hints: Iterable[Hint] = (),
    producer: int = 1,
) -> list[Frame]:
    """`"C10 C11+3 A5 p2:O20"`: flags, clock, `+n` for n documents, `p2:` for another producer.

    Every ACK carries `hints`.
    """
    rows = np.array(list(hints), ACK_ROW)
    built: list[Frame] = []
    for word in script.split():
        match = _WORD.fullmatch(word)
        assert match, word
        who, letter, clock, count = match.groups()
        offset = begin + len(built) * FRAME_BYTES
        flags = _FLAGS[letter]
        document_count = 0 if flags is Flags.ACK else int(count or 1)
        built.append(
            Frame(
                JournalId(journal),
                Offset(offset),
                Offset(offset + FRAME_BYTES),
                Producer(int(who or producer)),
                Clock(int(clock)),
                document_count,
                0,
                flags,
                documents(int(clock), document_count),
                FRAME_BYTES,
                hints=rows if len(rows) and flags is Flags.ACK else None,
            )
        )
    return built


def decode(frame: Frame, _: Source) -> pa.RecordBatch:
    """The documents of a frame that `frames` built."""
    batch: pa.RecordBatch = frame.body
    return batch


def head(
    *pairs: tuple[int, int, int, int],
    binding: int = 0,
    lane: int = 0,
    low: int | None = None,
    high: int | None = None,
) -> BlockHead:
    """The head of a block that holds every clock of these (place, producer, first, last)."""
    rows = [(*pair, pair[3] - pair[2] + 1) for pair in pairs]
    return BlockHead(
        BindingTag(binding),
        lane,
        min(first for _, _, first, _ in pairs) if low is None else low,
        max(last for *_, last in pairs) if high is None else high,
        sum(row[4] for row in rows),
        np.array(rows, PAIR_ROW).tobytes(),
    )


def block(*pairs: tuple[int, int, int, int]) -> pa.RecordBatch:
    """The documents that `head` describes; `doc` and `_clock` are both the clock."""
    clocks = np.concatenate([np.arange(first, last + 1) for _, _, first, last in pairs])
    which = np.repeat(np.arange(len(pairs)), [last - first + 1 for _, _, first, last in pairs])
    return pa.RecordBatch.from_arrays(
        [
            pa.array(clocks.astype(np.int64)),
            pa.array(clocks.astype(np.uint64)),
            pa.array(which.astype(np.uint32)),
        ],
        names=["doc", "_clock", "_pair"],
    )


def frontier(*rows: tuple[int, int, int, int], through: int = 1 << 40) -> Frontier:
    """A frontier of rows (journal, binding, producer, last commit)."""
    places: dict[tuple[int, int], dict[Producer, ProducerProgress]] = {}
    for journal, binding, producer, commit in rows:
        known = places.setdefault((journal, binding), {})
        known[Producer(producer)] = ProducerProgress(Clock(commit), -1)
    return Frontier.build(
        JournalProgress(JournalTag(journal), BindingTag(binding), Offset(through), producers)
        for (journal, binding), producers in places.items()
    )

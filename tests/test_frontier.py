"""The frontier's algebra: tables for its rules, properties for its laws, a dict as the oracle."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import assume, given
from hypothesis import strategies as st

from headrace.clock import CLOCK_MAX, Clock
from headrace.errors import DataError, UsageError, VersionError
from headrace.frontier import (
    JOURNAL_ROW,
    PRODUCER_ROW,
    TAG_MAX,
    BindingTag,
    Frontier,
    JournalProgress,
    JournalTag,
    ProducerProgress,
    diff,
    reduce,
)
from headrace.ids import Offset, Producer

OFFSET_MAX = (1 << 63) - 1


def at(journal: int, binding: int, through: int, **producers: tuple[int, int]) -> JournalProgress:
    """`at(1, 0, 100, p7=(20, -90))`: producer 7 committed clock 20, which ended at 90."""
    return JournalProgress(
        JournalTag(journal),
        BindingTag(binding),
        Offset(through),
        {Producer(int(k[1:])): ProducerProgress(Clock(c), s) for k, (c, s) in producers.items()},
    )


def frontier(*entries: JournalProgress) -> Frontier:
    return Frontier.build(entries)


# Few tags and small numbers, so that generated frontiers meet in places, producers and ties.
@st.composite
def _entries(draw: st.DrawFn) -> JournalProgress:
    through = draw(st.one_of(st.integers(0, 6), st.just(OFFSET_MAX)))
    clock = st.one_of(st.integers(0, 3), st.just(int(CLOCK_MAX)))
    span = st.one_of(
        st.integers(-min(through, 6), min(through, 6)), st.sampled_from([through, -through])
    )
    producers = draw(
        st.dictionaries(st.sampled_from([1, 2, (1 << 48) - 1]), st.tuples(clock, span), max_size=3)
    )
    journal, binding = draw(st.tuples(st.sampled_from([0, 1, TAG_MAX]), st.integers(0, 1)))
    return at(journal, binding, through, **{f"p{p}": state for p, state in producers.items()})


frontiers = st.lists(_entries(), max_size=6, unique_by=lambda e: (e.journal, e.binding)).map(
    Frontier.build
)

Oracle = dict[tuple[int, int], JournalProgress]


def oracle_reduce(parts: Iterable[Iterable[JournalProgress]]) -> Oracle:
    """The rules of the module's docstring, said with dicts."""
    merged: Oracle = {}
    for part in parts:
        for entry in part:
            known = merged.get((entry.journal, entry.binding), replace(entry, producers={}))
            producers = dict(known.producers)
            for producer, state in entry.producers.items():
                old = producers.get(producer, state)
                later = max(old.span, state.span, key=lambda span: (abs(span), span >= 0))
                commit = max(old.last_commit, state.last_commit)
                producers[producer] = ProducerProgress(commit, later)
            merged[entry.journal, entry.binding] = JournalProgress(
                entry.journal, entry.binding, max(known.through, entry.through), producers
            )
    return merged


@pytest.mark.parametrize(
    ("left", "right", "merged"),
    [
        ([], [at(1, 0, 5)], [at(1, 0, 5)]),
        ([at(1, 0, 5)], [at(2, 0, 6)], [at(1, 0, 5), at(2, 0, 6)]),
        ([at(1, 0, 5)], [at(1, 1, 6)], [at(1, 0, 5), at(1, 1, 6)]),
        ([at(1, 0, 5)], [at(1, 0, 6)], [at(1, 0, 6)]),
        # A producer one side does not know, and one that never committed.
        ([at(1, 0, 5)], [at(1, 0, 5, p7=(0, 3))], [at(1, 0, 5, p7=(0, 3))]),
        ([at(1, 0, 5, p7=(0, 3))], [at(1, 0, 5, p8=(2, -4))], [at(1, 0, 5, p7=(0, 3), p8=(2, -4))]),
        # Open, then committed; open, then rolled back; committed, then open again.
        ([at(1, 0, 9, p7=(1, 3))], [at(1, 0, 9, p7=(2, -6))], [at(1, 0, 9, p7=(2, -6))]),
        ([at(1, 0, 9, p7=(1, 3))], [at(1, 0, 9, p7=(1, -6))], [at(1, 0, 9, p7=(1, -6))]),
        ([at(1, 0, 9, p7=(2, -6))], [at(1, 0, 9, p7=(2, 8))], [at(1, 0, 9, p7=(2, 8))]),
        # Equal in magnitude: the span that begins where the last one ended is the later state.
        ([at(1, 0, 9, p7=(2, -6))], [at(1, 0, 9, p7=(2, 6))], [at(1, 0, 9, p7=(2, 6))]),
        ([at(1, 0, 9, p7=(0, 0))], [at(1, 0, 9, p7=(2, -1))], [at(1, 0, 9, p7=(2, -1))]),
        # The ends of the ranges.
        (
            [at(1, 0, OFFSET_MAX, p7=(int(CLOCK_MAX), -OFFSET_MAX))],
            [at(1, 0, OFFSET_MAX, p7=(0, OFFSET_MAX))],
            [at(1, 0, OFFSET_MAX, p7=(int(CLOCK_MAX), OFFSET_MAX))],
        ),
    ],
)
def test_reduce_takes_the_later_state(
    left: list[JournalProgress], right: list[JournalProgress], merged: list[JournalProgress]
) -> None:
    assert list(reduce(frontier(*left), frontier(*right))) == merged
    assert list(reduce(frontier(*right), frontier(*left))) == merged


@given(st.lists(frontiers, max_size=4))
def test_reduce_agrees_with_the_oracle(parts: list[Frontier]) -> None:
    expected = oracle_reduce(parts)
    assert list(reduce(*parts)) == [expected[key] for key in sorted(expected)]


@given(frontiers, frontiers, frontiers)
def test_reduce_is_independent_of_order_and_grouping(a: Frontier, b: Frontier, c: Frontier) -> None:
    merged = reduce(a, b, c)
    assert reduce(reduce(a, b), c) == merged == reduce(a, reduce(b, c))
    assert all(reduce(*order) == merged for order in permutations((a, b, c)))


@given(frontiers, frontiers)
def test_reduce_is_idempotent_and_empty_is_its_identity(a: Frontier, b: Frontier) -> None:
    merged = reduce(a, b)
    assert reduce(merged, a, merged) == merged
    assert reduce(a) == reduce(a, a) == reduce(a, Frontier.empty()) == a
    assert reduce() == Frontier.empty()


@given(frontiers, frontiers)
def test_project_distributes_over_reduce(a: Frontier, b: Frontier) -> None:
    journals = [JournalTag(0), JournalTag(TAG_MAX)]
    bindings = [BindingTag(1)]
    whole = reduce(a, b).project(journals=journals, bindings=bindings)
    assert whole == reduce(*(f.project(journals=journals, bindings=bindings) for f in (a, b)))
    assert list(whole) == [
        e for e in reduce(a, b) if e.journal in journals and e.binding in bindings
    ]


def test_project_takes_tags_that_are_absent_and_none_means_all() -> None:
    whole = frontier(at(1, 0, 5, p7=(0, 3)), at(1, 1, 5), at(2, 0, 5))
    assert whole.project() == whole
    assert whole.project(journals=[]) == Frontier.empty()
    assert list(whole.project(journals=[JournalTag(1), JournalTag(9)])) == list(whole)[:2]
    assert list(whole.project(bindings=[BindingTag(1)])) == [at(1, 1, 5)]


@given(frontiers, frontiers)
def test_diff_is_what_reduce_adds(base: Frontier, more: Frontier) -> None:
    new = reduce(base, more)
    delta = diff(base, new)
    assert reduce(base, delta) == new
    known = list(base)
    assert all(entry not in known for entry in delta)
    assert diff(new, new) == Frontier.empty()


def test_diff_holds_only_what_changed() -> None:
    base = frontier(at(1, 0, 9, p7=(1, -3), p8=(1, -4)), at(2, 0, 9, p7=(1, -3)), at(3, 0, 9))
    new = reduce(base, frontier(at(1, 0, 9, p8=(1, 9)), at(3, 0, 10), at(4, 0, 0)))
    assert list(diff(base, new)) == [at(1, 0, 9, p8=(1, 9)), at(3, 0, 10), at(4, 0, 0)]


@pytest.mark.parametrize(
    ("base", "new"),
    [
        (at(5, 2, 9), at(5, 2, 8)),
        (at(5, 2, 9), at(6, 2, 9)),
        (at(5, 2, 9, p7=(1, 3)), at(5, 2, 10)),
        (at(5, 2, 9, p7=(2, 3)), at(5, 2, 10, p7=(1, 4))),
        (at(5, 2, 9, p7=(1, 3)), at(5, 2, 10, p7=(2, -2))),
        (at(5, 2, 9, p7=(1, 3)), at(5, 2, 10, p7=(2, -3))),
    ],
)
def test_diff_refuses_a_frontier_that_went_backwards(
    base: JournalProgress, new: JournalProgress
) -> None:
    with pytest.raises(UsageError, match="went backwards at journal 5, binding 2"):
        diff(frontier(at(1, 0, 1), base), frontier(at(1, 0, 1), new))


@given(frontiers)
def test_resume_offset_is_the_least_of_through_and_open_begins(f: Frontier) -> None:
    assert f.resume_offsets().tolist() == [entry.resume_offset for entry in f]


@pytest.mark.parametrize(
    ("progress", "resume", "kept"),
    [
        (at(1, 0, 9), 9, []),
        (at(1, 0, 9, p7=(1, -9)), 9, []),
        (at(1, 0, 9, p7=(0, -9)), 9, []),
        (at(1, 0, 9, p7=(1, 9)), 9, [7]),
        (at(1, 0, 9, p7=(0, 0)), 0, [7]),
        (at(1, 0, 9, p7=(1, 4), p8=(1, -4)), 4, [7]),
        (at(1, 0, 9, p7=(1, 4), p8=(1, -5)), 4, [7, 8]),
        (at(1, 0, 9, p7=(1, 4), p8=(1, 6), p9=(1, -6)), 4, [7, 8, 9]),
    ],
)
def test_prune_keeps_what_a_resumed_read_meets_again(
    progress: JournalProgress, resume: int, kept: list[int]
) -> None:
    pruned = frontier(progress).prune()
    (entry,) = pruned
    assert progress.resume_offset == entry.resume_offset == resume
    assert list(entry.producers) == kept


@dataclass(frozen=True)
class Frame:
    """One offset of a simulated journal. `commit`: None a document, True a commit, False not."""

    producer: int
    clock: int
    commit: bool | None


def _journal(steps: list[tuple[int, int]]) -> list[Frame]:
    """Frames of producers that follow the protocol; each takes clocks above all of its own."""
    return [
        Frame(producer, clock, (None, None, True, False)[kind])
        for clock, (producer, kind) in enumerate(steps, start=1)
    ]


def _read(journal: list[Frame], start: Frontier, end: int) -> tuple[list[int], Frontier]:
    """Reads on from a frontier: the clocks that became visible, and the frontier at `end`."""
    known = start.get(JournalTag(1), BindingTag(0)) or at(1, 0, 0)
    states = dict(known.producers)
    pending: dict[Producer, list[int]] = {}
    visible: list[int] = []
    for offset in range(known.resume_offset, end):
        frame = journal[offset]
        producer = Producer(frame.producer)
        state = states.get(producer, ProducerProgress(Clock(0), -offset))
        if frame.clock > state.last_commit:
            if frame.commit is None:
                pending.setdefault(producer, []).append(frame.clock)
                if not state.is_open:
                    state = replace(state, span=offset)
            else:
                documents = pending.pop(producer, [])
                commit = frame.clock if frame.commit else state.last_commit
                visible += documents if frame.commit else []
                state = ProducerProgress(Clock(commit), -(offset + 1))
            states[producer] = state
    progress = JournalProgress(
        JournalTag(1), BindingTag(0), Offset(max(end, known.through)), states
    )
    return visible, reduce(start, frontier(progress))


journals = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3)), max_size=25).map(_journal)


@given(journals, st.data())
def test_merged_prefixes_of_a_read_are_the_longest_of_them(
    journal: list[Frame], data: st.DataObject
) -> None:
    lengths = data.draw(st.lists(st.integers(0, len(journal)), min_size=1))
    prefixes = [_read(journal, Frontier.empty(), end)[1] for end in lengths]
    assert reduce(*prefixes) == prefixes[lengths.index(max(lengths))]


@given(journals, st.data())
def test_resuming_from_a_pruned_frontier_yields_each_document_once(
    journal: list[Frame], data: st.DataObject
) -> None:
    # proves G7 for the frontier: what is pruned is never needed to tell documents apart.
    stops = sorted(data.draw(st.lists(st.integers(0, len(journal)), max_size=4)))
    expected, _ = _read(journal, Frontier.empty(), len(journal))
    visible: list[int] = []
    progress = Frontier.empty()
    for stop in [*stops, len(journal)]:
        seen, progress = _read(journal, progress.prune(), stop)
        visible += seen
    assert sorted(visible) == sorted(expected)


@given(frontiers)
def test_encode_round_trips_and_is_equal_for_equal_frontiers(f: Frontier) -> None:
    data = f.encode()
    assert Frontier.decode(data) == f
    assert list(Frontier.decode(data)) == list(f)
    assert Frontier.build(reversed(list(f))).encode() == data


@given(frontiers, st.data())
def test_truncated_bytes_are_a_data_error(f: Frontier, data: st.DataObject) -> None:
    encoded = f.encode()
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(DataError, match="checksum"):
        Frontier.decode(encoded[:cut])


@given(frontiers, st.data())
def test_a_flipped_bit_is_a_data_error(f: Frontier, data: st.DataObject) -> None:
    encoded = bytearray(f.encode())
    bit = data.draw(st.integers(0, len(encoded) * 8 - 1))
    encoded[bit // 8] ^= 1 << bit % 8
    with pytest.raises(DataError, match="checksum"):
        Frontier.decode(bytes(encoded))


def _sealed(payload: bytes) -> bytes:
    return bytes(xxhash.xxh3_64_digest(payload)) + payload


def _stream(rows: list[dict[str, object]], schema: pa.Schema) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_table(pa.Table.from_pylist(rows, schema))
    return bytes(sink.getvalue())


def _schema() -> pa.Schema:
    return pa.ipc.open_stream(Frontier.empty().encode()[8:]).schema


def _row(journal: int, through: int, *producers: tuple[int, int, int]) -> dict[str, object]:
    names = ("producer", "last_commit", "span")
    return {
        "journal": journal,
        "binding": 0,
        "through": through,
        "producers": [dict(zip(names, p, strict=True)) for p in producers],
    }


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([_row(2, 5), _row(1, 5)], "journal 1, binding 0 is out of order or there twice"),
        ([_row(1, 5), _row(1, 5)], "journal 1, binding 0 is out of order or there twice"),
        ([_row(1, -1)], "journal 1, binding 0 is read through -1"),
        ([_row(1, 5, (9, 0, 1), (8, 0, 1))], "producer 000000000008 is out of order"),
        ([_row(1, 5, (9, 0, 1), (9, 0, 1))], "producer 000000000009 is out of order"),
        ([_row(1, 5, (0, 0, 1))], "producer 000000000000 is not a 48-bit producer"),
        ([_row(1, 5, (1 << 48, 0, 1))], "producer 1000000000000 is not a 48-bit producer"),
        ([_row(1, 5, (9, 0, 6))], "a span at 6, but is read only through 5"),
        ([_row(1, 5, (9, 0, -6))], "a span at -6, but is read only through 5"),
        ([_row(1, OFFSET_MAX, (9, 0, -(1 << 63)))], "a span at -9223372036854775808"),
        ([_row(1, 5) | {"through": None}], "it has nulls"),
        ([_row(1, 5) | {"producers": None}], "it has nulls"),
        ([_row(1, 5) | {"producers": [None]}], "it has nulls"),
    ],
)
def test_decode_refuses_what_cannot_be(rows: list[dict[str, object]], why: str) -> None:
    with pytest.raises(DataError, match=why):
        Frontier.decode(_sealed(_stream(rows, _schema())))


def test_decode_refuses_other_formats() -> None:
    other = pa.schema([("x", pa.int64())], metadata=_schema().metadata)
    newer = _schema().with_metadata({"headrace.frontier": "2"})
    with pytest.raises(VersionError, match="format 2"):
        Frontier.decode(_sealed(_stream([], newer)))
    with pytest.raises(DataError, match=r"columns are \['x'\]"):
        Frontier.decode(_sealed(_stream([], other)))
    with pytest.raises(DataError, match="not a frontier"):
        Frontier.decode(_sealed(_stream([], other.remove_metadata())))
    with pytest.raises(DataError, match="cannot be read"):
        Frontier.decode(_sealed(b""))


@given(frontiers, st.data())
def test_damage_under_a_right_checksum_is_a_data_error_or_a_valid_frontier(
    f: Frontier, data: st.DataObject
) -> None:
    payload = bytearray(f.encode()[8:])
    for _ in range(data.draw(st.integers(1, 3))):
        bit = data.draw(st.integers(0, len(payload) * 8 - 1))
        payload[bit // 8] ^= 1 << bit % 8
    try:
        decoded = Frontier.decode(_sealed(bytes(payload)))
    except (DataError, VersionError):
        return
    assert Frontier.build(decoded) == decoded


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ([at(1, 0, 5), at(1, 0, 6)], "journal 1, binding 0 is out of order or there twice"),
        ([at(1, 0, -1)], "read through -1"),
        ([at(1, 0, 5, p0=(0, 0))], "not a 48-bit producer"),
        ([at(1, 0, 5, p7=(0, 6))], "read only through 5"),
        ([at(1, 0, 1 << 63)], "does not fit into 64 bits"),
        ([at(1, 0, 5, p7=(-1, 0))], "does not fit into 64 bits"),
        ([at(TAG_MAX + 1, 0, 5)], "not two 32-bit tags"),
        ([at(0, -1, 5)], "not two 32-bit tags"),
    ],
)
def test_build_refuses_what_cannot_be(entries: list[JournalProgress], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        Frontier.build(entries)


def test_from_rows_refuses_a_producer_without_its_journal() -> None:
    producers = np.array([(7, 7, 0, 0)], PRODUCER_ROW)
    with pytest.raises(UsageError, match=r"journal 0, binding 7: producer .* has no row"):
        Frontier.from_rows(np.zeros(0, JOURNAL_ROW), producers)


def test_a_frontier_is_an_immutable_value() -> None:
    f = frontier(at(1, 0, 5, p7=(1, -3)))
    assert f == frontier(at(1, 0, 5, p7=(1, -3)))
    assert f != frontier(at(1, 0, 5, p7=(1, 3)))
    assert f != frontier(at(1, 0, 6, p7=(1, -3)))
    assert (len(f), repr(f)) == (1, "Frontier(1 journals, 1 producers)")
    with pytest.raises(ValueError, match="read-only"):
        f.journals["through"][0] = 9
    with pytest.raises(ValueError, match="read-only"):
        reduce(f, f).producers["span"][0] = 9


@given(frontiers)
def test_get_finds_each_place_and_nothing_else(f: Frontier) -> None:
    assert [f.get(e.journal, e.binding) for e in f] == list(f)
    absent = (JournalTag(2), BindingTag(5))
    assume(all((e.journal, e.binding) != absent for e in f))
    assert f.get(*absent) is None


def _many(seed: int, count: int) -> Frontier:
    random = np.random.default_rng(seed)
    journals = np.zeros(count, JOURNAL_ROW)
    journals["place"] = random.permutation(count).astype(np.uint64) << 32
    journals["place"] |= random.integers(0, 2, count, np.uint64)
    journals["through"] = random.integers(0, 50, count)
    producers = np.zeros(2 * count, PRODUCER_ROW)
    producers["place"] = np.repeat(journals["place"], 2)
    producers["producer"] = random.integers(1, 4, 2 * count) + np.tile([0, 4], count)
    producers["last_commit"] = random.integers(0, 50, 2 * count)
    through = np.repeat(journals["through"], 2)
    producers["span"] = random.integers(-through, through + 1)
    return Frontier.from_rows(journals, producers)


@pytest.mark.long
def test_a_hundred_thousand_journals_agree_with_the_oracle() -> None:
    base, more = _many(1, 100_000), _many(2, 100_000)
    expected = oracle_reduce([base, more])
    merged = reduce(base, more)
    assert list(merged) == [expected[key] for key in sorted(expected)]

    known: Oracle = {(e.journal, e.binding): e for e in base}
    delta = diff(base, merged)
    assert reduce(base, delta) == merged
    assert [(e.journal, e.binding) for e in delta] == [
        key for key in sorted(expected) if expected[key] != known.get(key)
    ]
    assert Frontier.decode(merged.encode()) == merged
    assert merged.resume_offsets().tolist() == [e.resume_offset for e in merged]

"""Damage and torn tails: breaks each position of a log in each way, and checks the outcome."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import pytest

from headrace.errors import DataError, VersionError
from headrace.log import Log, Segment
from headrace.log import format as layout
from headrace.log.segments import dropped_name, released_name, segment_name
from headrace.settings import LogSettings
from headrace.testing.power import Files, RecordedDisk
from tests.log.recorded_log import contents

ONE_SEGMENT = LogSettings(idle_seal_s=3600)
SMALL_SEGMENTS = LogSettings(segment_bytes=100, idle_seal_s=3600)
GROUPS = ((b"one", b"", b"of eight"), (b"two" * 7, b"middle"), (b"three" * 9, b"last"))
FIRST = segment_name(0)


class Outcome(Enum):
    REFUSED = "a DataError at the damaged frame; the files are as they were"
    CUT = "what is before the damaged frame stays, what is after it is cut"


@dataclass(frozen=True)
class Area:
    """A range of bytes of the only segment."""

    start: int
    end: int

    def positions(self) -> range:
        return range(self.start, self.end)


@dataclass(frozen=True)
class Written:
    """A log of one segment as its process left it, with the positions of its parts."""

    content: bytes
    payloads: list[tuple[int, bytes]]
    frames: list[layout.LogFrame]

    def area(self, name: str) -> Area:
        groups = [frame.offset for frame in self.frames if frame.kind == layout.GROUP]
        bounds = [0, *groups, len(self.content)]
        at = {"header": 0, "first group": 1, "middle group": 2, "last group": 3, "seal": 4}[name]
        return Area(bounds[at], bounds[at + 1])

    def frame_start(self, position: int) -> int:
        """Return where the frame of this byte begins; the segment's header counts as a frame."""
        return max([0, *(f.offset for f in self.frames if f.offset <= position)])

    def payloads_before(self, offset: int) -> list[tuple[int, bytes]]:
        return [each for each in self.payloads if each[0] < offset]


def written(*, sealed: bool) -> Written:
    disk = RecordedDisk()
    log = Log(disk, ONE_SEGMENT)
    for group in GROUPS:
        log.wait(log.append([[payload] for payload in group])[-1])
    unsealed = disk.files()[FIRST]
    payloads = contents(log)
    log.close()
    content = disk.files()[FIRST] if sealed else unsealed
    frames = list(layout.frames(memoryview(content), 0, layout.SEGMENT_HEADER.size))
    return Written(content, payloads, frames)


def one_bit(content: bytes, position: int, bits: range) -> Iterator[bytes]:
    for bit in bits:
        damaged = bytearray(content)
        damaged[position] ^= 1 << bit
        yield bytes(damaged)


def check(content: bytes, whole: Written, damaged_at: int, outcome: Outcome) -> None:
    files = {FIRST: content}
    disk = RecordedDisk(files)
    if outcome is Outcome.REFUSED:
        with pytest.raises(DataError) as refusal:
            Log(disk, ONE_SEGMENT)
        assert f"{disk.path(FIRST)} is damaged at offset {damaged_at} " in str(refusal.value)
        assert disk.files() == files
        return
    log = Log(disk, ONE_SEGMENT)
    kept = whole.payloads_before(damaged_at)
    assert contents(log) == kept
    log.wait(log.append([[b"next"]])[0])
    assert [payload for _, payload in contents(log)] == [*(p for _, p in kept), b"next"]
    log.close()


@pytest.mark.parametrize(
    ("sealed", "area", "outcome"),
    [
        (False, "header", Outcome.REFUSED),
        (False, "first group", Outcome.REFUSED),
        (False, "middle group", Outcome.REFUSED),
        (False, "last group", Outcome.CUT),
        (True, "header", Outcome.REFUSED),
        (True, "first group", Outcome.REFUSED),
        (True, "middle group", Outcome.REFUSED),
        (True, "last group", Outcome.REFUSED),
        (True, "seal", Outcome.CUT),
    ],
)
def test_any_flipped_bit(sealed: bool, area: str, outcome: Outcome) -> None:  # proves G4
    whole = written(sealed=sealed)
    for position in whole.area(area).positions():
        frame = whole.frame_start(position)
        is_header = position - frame < max(layout.FRAME_HEADER.size, layout.SEGMENT_HEADER.size)
        bits = range(8) if is_header else range(position % 8, position % 8 + 1)
        for content in one_bit(whole.content, position, bits):
            check(content, whole, frame, outcome)


@pytest.mark.parametrize(
    ("sealed", "area", "outcome"),
    [
        (False, "header", Outcome.REFUSED),
        (False, "middle group", Outcome.REFUSED),
        (False, "last group", Outcome.CUT),
        (True, "middle group", Outcome.REFUSED),
        (True, "last group", Outcome.REFUSED),
        (True, "seal", Outcome.CUT),
    ],
)
def test_any_part_that_reads_as_zeros(
    sealed: bool, area: str, outcome: Outcome
) -> None:  # proves G4
    whole = written(sealed=sealed)
    end = whole.area(area).end
    for position in whole.area(area).positions():
        zeros = bytes(end - position)
        if whole.content[position:end] != zeros:
            content = whole.content[:position] + zeros + whole.content[end:]
            first_changed = position + next(i for i, b in enumerate(whole.content[position:]) if b)
            check(content, whole, whole.frame_start(first_changed), outcome)


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("then", [b"", bytes(1), bytes(700), b"\xff" * 700])
def test_a_file_that_ends_anywhere_keeps_the_whole_frames_before(
    sealed: bool, then: bytes
) -> None:  # proves G4
    whole = written(sealed=sealed)
    ends = [f.offset + layout.frame_bytes(len(f.payload)) for f in whole.frames]
    for length in range(len(whole.content) + 1):
        content = whole.content[:length] + then
        pairs = enumerate(zip(content, whole.content, strict=False))
        intact = next((at for at, (a, b) in pairs if a != b), min(len(content), len(whole.content)))
        torn_at = max([0, *(end for end in ends if end <= intact)])
        check(content, whole, torn_at, Outcome.CUT)


def in_segments() -> tuple[Files, list[Segment], list[tuple[int, bytes]]]:
    disk = RecordedDisk()
    log = Log(disk, SMALL_SEGMENTS)
    for number in range(5):
        log.wait(log.append([[b"%d" % number * 60], [b"second"]])[-1])
    found = log.segments(), contents(log)
    log.close()
    return disk.files(), *found


def test_any_flipped_bit_in_a_closed_segment_is_an_error_when_it_is_read() -> None:  # proves G4
    files, live, payloads = in_segments()
    segment = live[1]
    name = segment_name(segment.base)
    first = segment.base + layout.SEGMENT_HEADER.size
    frames = list(layout.frames(memoryview(files[name]), segment.base, first))
    for position in range(len(files[name])):
        damaged_at = max(
            [segment.base, *(f.offset for f in frames if f.offset - segment.base <= position)]
        )
        for content in one_bit(files[name], position, range(position % 8, position % 8 + 1)):
            log = Log(RecordedDisk({**files, name: content}), SMALL_SEGMENTS)
            with pytest.raises(DataError, match=rf"{name} is damaged at offset {damaged_at} "):
                contents(log)
            for offset, payload in payloads:
                in_header = damaged_at == segment.base <= offset < segment.end
                if offset == damaged_at or in_header:
                    with pytest.raises(DataError, match=rf"{name} is damaged at offset"):
                        log.read(offset)
                else:
                    assert log.read(offset) == payload
            log.close()


def refused(files: Files, match: str) -> None:
    disk = RecordedDisk(files)
    with pytest.raises(DataError, match=match):
        Log(disk, SMALL_SEGMENTS)
    assert disk.files() == files


def without(files: Files, *names: str) -> Files:
    return {name: content for name, content in files.items() if name not in names}


def test_a_missing_segment_in_the_middle_is_refused_and_nothing_is_repaired() -> None:  # proves G4
    files, live, _ = in_segments()
    torn = {**files, segment_name(live[-1].base): files[segment_name(live[-1].base)] + b"torn"}
    for index in range(1, len(live) - 1):
        match = f"{segment_name(live[index - 1].base)} is damaged at offset {live[index].base} "
        refused(without(torn, segment_name(live[index].base)), match)


@pytest.mark.parametrize("length", [1, 31, 32, 33, 64, -1])
def test_a_closed_segment_of_another_length_is_refused(length: int) -> None:  # proves G4
    files, live, _ = in_segments()
    name = segment_name(live[2].base)
    refused({**files, name: files[name][:length]}, name)
    refused({**files, name: files[name] + b"more"}, name)


def test_a_segment_that_was_begun_after_a_torn_one_is_refused() -> None:  # proves G4
    """The log had synced the predecessor, so what looks like a tear in it is damage."""
    files, live, _ = in_segments()
    newest = segment_name(live[-1].base)
    before = segment_name(live[-2].base)
    assert len(files[newest]) > 60
    for header in (b"", bytes(32), files[newest][:31]):
        begun = {**files, newest: header}
        log = Log(RecordedDisk(begun), SMALL_SEGMENTS)
        assert log.segments() == live[:-1]
        log.close()
        flipped = files[before][:-9] + bytes([files[before][-9] ^ 1]) + files[before][-8:]
        refused({**begun, before: flipped}, rf"{before} is damaged .* was begun after it")


def test_a_header_without_a_predecessor_is_damage_not_a_tear() -> None:  # proves G4
    files, live, _ = in_segments()
    newest = segment_name(live[-1].base)
    refused({newest: files[newest][:31]}, newest)
    refused({newest: bytes(32)}, newest)
    refused({FIRST: bytes(32), released_name(8): b""}, FIRST)


def test_a_missing_newest_segment_is_noticed_by_what_was_given_up_before_it() -> None:  # proves G4
    files, live, _ = in_segments()
    newest = segment_name(live[-1].base)
    gone = without(files, newest, segment_name(live[-2].base))
    refused(
        {**gone, dropped_name(live[-2]): b""}, f"{newest} is damaged .* newest segment is missing"
    )
    refused({dropped_name(live[0]): b""}, segment_name(live[1].base))
    refused({released_name(live[1].base): b""}, segment_name(live[1].base))
    refused({**gone, released_name(live[-1].base): b""}, newest)


def test_a_renamed_segment_is_refused() -> None:
    content = written(sealed=False).content
    refused({segment_name(800): content}, "it is the segment of offset 0")


def test_a_log_of_a_newer_format_is_refused_and_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as newer:
        newer.setattr(layout, "FORMAT_VERSION", layout.FORMAT_VERSION + 1)
        files = {FIRST: layout.segment_header(0)}
    disk = RecordedDisk(files)
    with pytest.raises(VersionError, match="has format version 2, and this Headrace reads 1"):
        Log(disk, ONE_SEGMENT)
    assert disk.files() == files


def test_other_files_in_the_directory_are_left_alone() -> None:
    others = {"notes.log": b"x", "lock": b"", "7.log": b"", "a-b.dropped": b"", "x.released": b""}
    disk = RecordedDisk({**others, FIRST: written(sealed=True).content})
    log = Log(disk, ONE_SEGMENT)
    assert len(contents(log)) == sum(len(group) for group in GROUPS)
    log.close()
    assert others.items() <= disk.files().items()


def test_each_group_says_what_had_been_synced_before_it() -> None:
    files, live, _ = in_segments()
    for base, _ in live:
        first = base + layout.SEGMENT_HEADER.size
        frames = layout.frames(memoryview(files[segment_name(base)]), base, first)
        for group in (frame for frame in frames if frame.kind == layout.GROUP):
            through = base if group.offset == first else group.offset
            assert layout.synced_through(group) == through


def test_a_damaged_header_is_refused_if_even_one_group_follows() -> None:  # proves G4
    files, live, _ = in_segments()
    for base in (0, live[-1].base):
        name = segment_name(base)
        one_group = files[name][: live[0].end]
        for position in range(layout.SEGMENT_HEADER.size):
            (content,) = one_bit(one_group, position, range(1))
            others = files if base else {}
            refused({**others, name: content}, f"{name} is damaged at offset {base} ")


def test_a_payload_is_never_taken_for_a_group() -> None:
    disk = RecordedDisk()
    log = Log(disk, ONE_SEGMENT)
    offset = log.append([[layout.GROUP_PAYLOAD.pack(layout.GROUP_MAGIC, 0)]])[0]
    log.wait(offset)
    content = bytearray(disk.files()[FIRST])
    log.close()
    content[offset + 4] = layout.GROUP
    log = Log(RecordedDisk({FIRST: bytes(content)}), ONE_SEGMENT)
    assert log.synced_end == offset
    log.close()


def test_a_frame_is_not_valid_anywhere_else() -> None:
    """The bytes of a frame at another position are a tear, not a second payload."""
    whole = written(sealed=False)
    area = whole.area("last group")
    group = whole.content[area.start : area.end]
    check(whole.content + group, whole, len(whole.content), Outcome.CUT)


def test_a_payload_that_looks_like_a_group_proves_nothing() -> None:
    """A torn frame whose payload holds the bytes of group frames is still cut."""
    disk = RecordedDisk()
    log = Log(disk, ONE_SEGMENT)
    log.wait(log.append([[b"kept"]])[0])
    end = log.synced_end
    elsewhere = layout.group_frame(end + 8, end + 1000) * 3
    offset = log.append([[elsewhere], [b"more"]])[0]
    log.wait(offset)
    content = disk.files()[FIRST]
    log.close()
    torn = RecordedDisk({FIRST: content[:-1]})
    log = Log(torn, ONE_SEGMENT)
    assert [p for _, p in contents(log)] == [b"kept", elsewhere]
    log.close()
    torn = RecordedDisk({FIRST: content[:offset] + b"\0" + content[offset + 1 :]})
    log = Log(torn, ONE_SEGMENT)
    assert [p for _, p in contents(log)] == [b"kept"]
    log.close()


@pytest.mark.deep
@pytest.mark.parametrize("sealed", [False, True])
def test_any_two_flipped_bits_lose_nothing_silently(sealed: bool) -> None:  # proves G4
    """The log refuses two flips below the last group, and cuts the damaged frames otherwise."""
    whole = written(sealed=sealed)
    last = whole.area("seal" if sealed else "last group").start
    for first in range(len(whole.content)):
        for second in range(first + 1, len(whole.content)):
            content = bytearray(whole.content)
            content[first] ^= 1 << first % 8
            content[second] ^= 1 << second % 8
            refuses = first < last and _proof_remains(whole, first, second)
            outcome = Outcome.REFUSED if refuses else Outcome.CUT
            check(bytes(content), whole, whole.frame_start(first), outcome)


def _proof_remains(whole: Written, first: int, second: int) -> bool:
    """Return True if a group frame after the first damaged frame is undamaged."""
    damaged = {whole.frame_start(first), whole.frame_start(second)}
    return any(
        frame.kind == layout.GROUP and frame.offset > min(damaged) and frame.offset not in damaged
        for frame in whole.frames
    )

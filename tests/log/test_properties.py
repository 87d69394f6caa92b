"""A log behaves like a list under any sequence of appends, releases and reopenings."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.log import Log
from headrace.settings import LogSettings
from headrace.testing.power import RecordedDisk
from tests.log.recorded_log import contents

pytestmark = pytest.mark.long

SETTINGS = LogSettings(segment_bytes=200, group_bytes_max=150, pending_bytes_max=400)

parts = st.lists(st.binary(max_size=60), max_size=3)


@dataclass(frozen=True)
class Append:
    payloads: list[list[bytes]]
    wait: bool


@dataclass(frozen=True)
class Drop:
    at: float


@dataclass(frozen=True)
class Release:
    at: float


@dataclass(frozen=True)
class Reopen:
    torn_by: bytes
    clean: bool


positions = st.floats(min_value=0, max_value=1, exclude_max=True)
steps = st.one_of(
    st.builds(Append, st.lists(parts, max_size=4), st.booleans()),
    st.builds(Drop, positions),
    st.builds(Release, positions),
    st.builds(Reopen, st.binary(max_size=20), st.booleans()),
)


@settings(max_examples=250, deadline=None, derandomize=True, database=None)
@given(st.lists(steps, max_size=25))
def test_the_log_behaves_like_a_list(script: list[Append | Drop | Release | Reopen]) -> None:
    disk = RecordedDisk()
    log = Log(disk, SETTINGS)
    expected: dict[int, bytes] = {}
    for step in script:
        if isinstance(step, Append):
            offsets = log.append(step.payloads)
            assert min(offsets, default=1 << 60) > max(expected, default=-1)
            expected |= zip(offsets, map(b"".join, step.payloads), strict=True)
            if step.wait and offsets:
                log.wait(offsets[-1])
                assert bytes(log.read(offsets[-1])) == expected[offsets[-1]]
            continue
        if expected:
            log.wait(max(expected))
        if isinstance(step, Drop) and len(log.segments()) > 1:
            segment = log.segments()[int(step.at * (len(log.segments()) - 1))]
            log.drop(segment)
            expected = {o: p for o, p in expected.items() if not segment.base <= o < segment.end}
        elif isinstance(step, Release) and expected:
            before = sorted(expected)[int(step.at * len(expected))]
            log.release_before(before)
            expected = {o: p for o, p in expected.items() if o >= before}
        elif isinstance(step, Reopen):
            files = disk.files()
            log.close()
            if not step.clean and files:
                newest = max(name for name in files if name.endswith(".log"))
                disk = RecordedDisk({**files, newest: files[newest] + step.torn_by})
            log = Log(disk, SETTINGS)
        assert contents(log) == sorted(expected.items())
    if expected:
        log.wait(max(expected))
    assert contents(log) == sorted(expected.items())
    for offset, payload in expected.items():
        assert bytes(log.read(offset)) == payload
    log.close()

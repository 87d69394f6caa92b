"""Power failures: every state that the syncs allow, at every point of a history."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.settings import LogSettings
from headrace.testing.power import Files
from tests.log.recorded_log import RecordedLog

pytestmark = pytest.mark.crash

SEED = 20240229


def payload(number: int, length: int) -> bytes:
    return f"{number:04d}".encode() * (length // 4 + 1)


def groups_and_seals(recording: RecordedLog) -> None:
    recording.append(b"first")
    recording.append(b"", payload(1, 30))
    recording.append_together((payload(2, 100),), (payload(3, 40), payload(4, 8)), (b"x",))
    recording.append(payload(5, 1300))
    recording.reopen()
    recording.append(b"after a clean close")
    recording.log.close()


def segments(recording: RecordedLog) -> None:
    for number in range(6):
        recording.append(payload(number, 500), b"and")
    recording.append_together((payload(6, 900),), (payload(7, 20),))
    recording.reopen()
    recording.append(payload(8, 950))
    recording.append(b"last")
    recording.log.close()


def drops(recording: RecordedLog) -> None:
    for number in range(10):
        recording.append(payload(number, 950))
    recording.drop(2)
    recording.drop(1)
    recording.append(b"between")
    recording.drop(0)
    recording.append(payload(10, 1000))
    recording.drop(1)
    recording.reopen()
    recording.drop(1)
    recording.drop(0)
    recording.append(b"last")
    recording.log.close()


def releases(recording: RecordedLog) -> None:
    for number in range(3):
        recording.append(payload(number, 300), b"two", payload(number, 200))
    recording.release_before(1)
    recording.append(payload(4, 500))
    recording.release_before(7)
    recording.reopen()
    recording.release_before(8)
    recording.append(payload(5, 900))
    recording.append(b"last")
    recording.release_before(len(recording.appended) - 1)
    recording.log.close()


def releases_of_everything(recording: RecordedLog) -> None:
    for number in range(4):
        recording.append(payload(number, 500))
        offset = recording.log.synced_end
        with recording._giving_up(0, offset):
            recording.log.release_before(offset)
        if number % 2:
            recording.reopen()
    recording.append(b"last")
    recording.log.close()


def drops_and_releases(recording: RecordedLog) -> None:
    for number in range(8):
        recording.append(payload(number, 950))
    recording.drop(1)
    recording.release_before(3)
    recording.append(b"between")
    recording.drop(2)
    recording.release_before(7)
    recording.append(b"last")
    recording.log.close()


SCENARIOS = [
    groups_and_seals,
    segments,
    drops,
    releases,
    releases_of_everything,
    drops_and_releases,
]


@pytest.mark.parametrize("seal_at_once", [False, True])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_what_was_acknowledged_survives_a_power_failure_at_any_point(
    scenario: Callable[[RecordedLog], None], seal_at_once: bool
) -> None:  # proves G1, G4
    recording = record(scenario, seal_at_once)
    survive(recording, states_max=200, repair_states_max=8, repairs_every=41)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("seal_at_once", [False, True])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_what_was_acknowledged_survives_at_any_point_of_the_repair_too(
    scenario: Callable[[RecordedLog], None], seal_at_once: bool, seed: int
) -> None:  # proves G1, G4
    recording = record(scenario, seal_at_once)
    survive(recording, states_max=512, repair_states_max=16, repairs_every=11, seed=SEED + seed)


def record(scenario: Callable[[RecordedLog], None], seal_at_once: bool) -> RecordedLog:
    settings = LogSettings(segment_bytes=900, idle_seal_s=0 if seal_at_once else 3600)
    recording = RecordedLog(settings)
    scenario(recording)
    return recording


def survive(
    recording: RecordedLog,
    *,
    states_max: int,
    repair_states_max: int,
    repairs_every: int,
    seed: int = SEED,
) -> None:
    """Check every state, and for some of them each power failure during the repair."""
    count = 0
    for point in range(recording.disk.point + 1):
        for files in recording.disk.after_power_failure(point, states_max=states_max, seed=seed):
            repair = check(recording, files, point, seed)
            count += 1
            if count % repairs_every:
                continue
            for later in range(repair.disk.point + 1):
                for left in repair.disk.after_power_failure(
                    later, states_max=repair_states_max, seed=seed
                ):
                    check(repair, left, later, seed)
    assert count > recording.disk.point


def check(recording: RecordedLog, files: Files, point: int, seed: int) -> RecordedLog:
    try:
        return recording.check(files, point)
    except BaseException as error:
        sizes = {name: len(content) for name, content in files.items()}
        error.add_note(f"seed {seed}, point {point} of {recording.disk.point}, files {sizes}")
        raise

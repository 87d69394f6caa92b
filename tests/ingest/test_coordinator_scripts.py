"""The golden scripts say what the coordinator's state answers now.

    pytest tests/ingest/test_coordinator_scripts.py --rewrite

writes their answers again; `headrace.testing.ingest.coordinator_script` explains their commands.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import UsageError
from headrace.ingest.state import CoordinatorState
from headrace.testing.ingest.coordinator_script import replay_script

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.txt"))
SHARED_SYNC = next(path for path in SCRIPTS if path.stem == "shared_sync")


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_tells_what_is_answered(path: Path, request: pytest.FixtureRequest) -> None:
    answered = replay_script(path.read_text())
    if request.config.getoption("--rewrite"):
        path.write_text(answered)
    assert path.read_text() == answered


def test_a_changed_answer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that never waits for storage tells nobody."""
    monkeypatch.setattr(CoordinatorState, "_sync", lambda _: [])
    monkeypatch.setattr(CoordinatorState, "validate", lambda _: None)
    script = SHARED_SYNC.read_text().replace("synced", "step")
    assert "sync flush" not in replay_script(script)


def test_an_unknown_command_is_refused_with_its_line() -> None:
    with pytest.raises(UsageError, match="'pause' is no command of a script") as refused:
        replay_script("# A comment.\n\npause\n")
    assert refused.value.__notes__ == ["line 3: pause"]

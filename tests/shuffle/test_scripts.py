"""The golden scripts say what the Session, Slices and Queues answer now.

    pytest tests/shuffle/test_scripts.py --rewrite

writes their answers again; `headrace.testing.shuffle.script` explains their commands.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import UsageError
from headrace.shuffle.queue.state import QueueState
from headrace.testing.shuffle.script import replay

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.txt"))
STARVING = next(path for path in SCRIPTS if path.stem == "starving_consumer")


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_tells_what_is_answered(path: Path, request: pytest.FixtureRequest) -> None:
    answered = replay(path.read_text())
    if request.config.getoption("--rewrite"):
        path.write_text(answered)
    assert path.read_text() == answered


def test_a_changed_answer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Queue that forgets its starving consumer gives no credit back."""
    monkeypatch.setattr(QueueState, "starve", lambda *_: [])
    assert replay(STARVING.read_text()) != STARVING.read_text()


def test_a_script_is_replayed_without_its_answers() -> None:
    text = STARVING.read_text()
    commands = [line for line in text.splitlines() if not line.startswith("  ")]
    assert replay("\n".join(commands)) == text


def test_an_unknown_command_is_refused_with_its_line() -> None:
    with pytest.raises(UsageError, match="'wait' is no command") as refused:
        replay("# A comment.\n\nwait\n")
    assert refused.value.__notes__ == ["line 3: wait"]

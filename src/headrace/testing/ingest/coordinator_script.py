"""Golden scripts of a write coordinator: what is asked of its state, and what the state answers.

    write 3             put three writes into the queue
    wait 2              wait for epoch 2
    forget 2            give up waiting for epoch 2
    step                merge, and flush if it is time
    flushed             the flush is complete
    failed TEXT         the flush failed
    synced              the sync is complete
    unsynced TEXT       the sync failed
    at 12.5             it is now 12.5 s
    short               a write found no room
    view                show what a reader sees
    close               refuse writes, and flush the rest

Lines that begin with # are kept, and so are empty ones. Answers are indented by two blanks, and the
last of them tells the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headrace.errors import UsageError
from headrace.ingest.contract import Epoch, FlushResult
from headrace.ingest.effects import (
    AnswerWaiters,
    Completion,
    CoordinatorEffect,
    FlushFailed,
    FlushSucceeded,
    PublishSnapshot,
    RefuseWrites,
    StartFlush,
    StartSync,
    StopThreads,
    SyncFailed,
    SyncSucceeded,
)
from headrace.ingest.state import CoordinatorState
from headrace.ingest.write_queue import QueuedWrites
from headrace.settings import IngestSettings
from headrace.testing.ingest.simulated_storage import ROW_BYTES, RowDelta, Rows

SETTINGS = IngestSettings(
    pending_bytes_max=100 * ROW_BYTES, flush_bytes=5 * ROW_BYTES, flush_interval_s=10
)


class ScriptedCoordinator:
    """A state, and what a script has told it."""

    def __init__(self) -> None:
        self.state = CoordinatorState[RowDelta, Rows](RowDelta, {}, SETTINGS, "store")
        self._now_s = 0.0
        self._queued: list[RowDelta] = []
        self._last = Epoch(0)
        self._is_short = False
        self._rows: Rows = {}
        self._sequence = 0
        self._commands: dict[str, Callable[[str], list[str]]] = {
            "write": self._write,
            "wait": lambda rest: self._told(self.state.wait_for(Epoch(int(rest)), rest)),
            "forget": self._forget,
            "step": lambda _: self._step(),
            "flushed": lambda _: self._step(self._flush()),
            "failed": lambda rest: self._step(FlushFailed(OSError(5, rest))),
            "synced": lambda _: self._step(SyncSucceeded(0.0)),
            "unsynced": lambda rest: self._step(SyncFailed(OSError(5, rest))),
            "at": self._at,
            "short": self._short,
            "view": lambda _: self._view(),
            "close": lambda _: self._told(self.state.close()),
        }

    def answer(self, line: str) -> list[str]:
        name, _, rest = line.partition(" ")
        if name not in self._commands:
            raise UsageError(f"{name!r} is no command of a script", do="see coordinator_script")
        answers = self._commands[name](rest)
        self.state.validate()
        return [*answers, self._watermarks()]

    def _watermarks(self) -> str:
        state = self.state
        return (
            f"{state.phase}: merged {state.merged}, flushed {state.flushed}, "
            f"durable {state.durable}"
        )

    def _write(self, rest: str) -> list[str]:
        for _ in range(int(rest)):
            self._last = Epoch(self._last + 1)
            self._queued.append(RowDelta({self._last: self._last}))
        return []

    def _forget(self, rest: str) -> list[str]:
        self.state.forget(Epoch(int(rest)), rest)
        return []

    def _at(self, rest: str) -> list[str]:
        self._now_s = float(rest)
        return []

    def _short(self, _: str) -> list[str]:
        self._is_short = True
        return []

    def _step(self, *completions: Completion) -> list[str]:
        queued, self._queued = self._queued, []
        was_short, self._is_short = self._is_short, False
        writes = QueuedWrites(queued, self._last, was_short)
        return self._told(self.state.step(self._now_s, writes, completions))

    def _flush(self) -> Completion:
        self._sequence += 1
        return FlushSucceeded(FlushResult(self._rows, self._sequence), 0.0)

    def _view(self) -> list[str]:
        view = self.state.view()
        deltas = " ".join(str(sorted(delta.rows)) for delta in view.deltas)
        return [f"snapshot {sorted(view.snapshot)}, deltas {deltas}, up to epoch {view.epoch}"]

    def _told(self, effects: list[CoordinatorEffect]) -> list[str]:
        return [self._tell(effect) for effect in effects]

    def _tell(self, effect: CoordinatorEffect) -> str:
        match effect:
            case StartFlush(delta, snapshot, epochs):
                self._rows = {**snapshot, **delta.rows}
                return f"flush {epochs}"
            case StartSync(sequence, last):
                return f"sync flush {sequence}, up to epoch {last}"
            case PublishSnapshot(_, epoch):
                return f"publish the snapshot of epoch {epoch}"
            case AnswerWaiters(waiters, error):
                told = "durable" if error is None else str(error)
                return f"tell those who wait for {', '.join(waiters) or 'nothing'}: {told}"
            case RefuseWrites(error):
                return f"refuse writes: {error}"
            case StopThreads():
                return "stop"


def replay_script(text: str) -> str:
    """Return the script with the answers of a new coordinator, whatever answers it had."""
    return "\n".join(_lines(text)) + "\n"


def _lines(text: str) -> Iterator[str]:
    coordinator = ScriptedCoordinator()
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("  "):
            continue
        yield line
        if line.strip() and not line.startswith("#"):
            try:
                answers = coordinator.answer(line)
            except UsageError as error:
                error.add_note(f"line {number}: {line}")
                raise
            yield from (f"  {answer}" for answer in answers)

"""What a workspace must hold, given the verdicts that its writers got."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import headrace as hr
from headrace.ids import Producer
from headrace.journal.sequencer import Sequence, sequence
from tests.journal.crash.publisher_process import COLLECTIONS

Tx = tuple[str, int]
"""A writer's label and the number it gave to its transaction."""


@dataclass
class Verdicts:
    committed: set[Tx] = field(default_factory=set)
    refused: set[Tx] = field(default_factory=set)
    opened: list[tuple[str, int, int]] = field(default_factory=list)
    """For each opening of a name, the number found there and the first one used."""


def verdicts(files: Iterable[Path]) -> Verdicts:
    """Read the verdicts so far; a killed process may leave a line without its end."""
    reported = Verdicts()
    for file in files:
        for line in file.read_text().splitlines(keepends=True):
            word, label, *numbers = line.split()
            match word:
                case _ if not line.endswith("\n"):
                    continue
                case "yes":
                    reported.committed.add((label, int(numbers[0])))
                case "no":
                    reported.refused.add((label, int(numbers[0])))
                case "opened":
                    reported.opened.append((label, int(numbers[0]), int(numbers[1])))
                case _:
                    raise AssertionError(f"{file.name}: {line}")
    return reported


def check(workspace: hr.Workspace, reported: Verdicts) -> int:
    """Compare one read of everything with earlier verdicts; return the transactions."""
    parts: dict[Tx, Counter[int]] = defaultdict(Counter)
    sizes: dict[Tx, int] = {}
    definitions = {name: workspace.collection(name) for name in COLLECTIONS}
    for journal in workspace.journals():
        clocks: dict[int, int] = {}
        newest: dict[str, int] = {}
        for frame in workspace.frames(journal):
            assert frame.clock > clocks.get(frame.producer, 0), "order of a producer"
            clocks[frame.producer] = frame.clock + frame.documents - 1
            batch = definitions[journal.name.rpartition("/")[0]].decode(frame.body, frame.schema)
            for label, tx, part, size in zip(*(c.to_pylist() for c in batch.columns), strict=True):
                assert tx >= newest.get(label, 0), f"{label}: {tx} after {newest[label]}"
                newest[label] = tx
                parts[label, tx][part] += 1
                sizes[label, tx] = size
    for tx, found in parts.items():
        assert sorted(found) == list(range(sizes[tx])), f"{tx} is there in part"
        assert set(found.values()) == {1}, f"{tx} has documents twice"
    visible = set(parts)
    assert not reported.committed - visible, f"lost: {sorted(reported.committed - visible)[:5]}"
    assert not reported.refused & visible, f"refused: {sorted(reported.refused & visible)[:5]}"
    for label, payload, first in reported.opened:
        assert payload == -1 or (label, payload) in visible
        between = [tx for writer, tx in visible if writer == label and payload < tx < first]
        assert not between, f"{label} was opened with {payload} and had {between}"
    return len(visible)


def check_all_ended(workspace: hr.Workspace) -> None:
    """Assert that no span is open in any journal, so that no reader waits."""
    assert not list(open_spans(workspace))


def open_spans(workspace: hr.Workspace) -> Iterator[Producer]:
    """Yield each producer that has a span open in a journal."""
    for journal in workspace.journals():
        states: dict[Producer, Sequence] = {}
        for frame in workspace.frames(journal, committed=False):
            before = states.get(frame.producer, Sequence())
            step = sequence(before, frame.flags, frame.clock, frame.documents, frame.offset)
            states[frame.producer] = step.after
        yield from (producer for producer, state in states.items() if state.begin is not None)

"""Which outputs of map tasks are published, kept among the objects so that a restart finds it.

An attempt is published by one record that only the first writer can create: the record of
(map task, generation). Generations are numbered from 1 without gaps. Output that is computed again,
because it was damaged, is the next generation; the highest one that is not void is the latest.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import count

from headrace.errors import DamagedOutputError, FencedError, NotFoundError
from headrace.exchange.format.layout import (
    LATEST,
    PUBLISHED,
    MapTask,
    check_attempt,
    numbers_of,
    stage_directory,
)
from headrace.exchange.format.publication import (
    Claim,
    PublishedOutput,
    decode_publication,
    encode_record,
    void,
)
from headrace.storage import Objects

_READS_AT_ONCE = 8


class OutputRegistry:
    """The registry of the map outputs among some objects. Any thread or process may use it."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def claim(self, task: MapTask, replaces: int, now_ms: int) -> Claim | PublishedOutput:
        """Take an attempt of the map task for one writer, which alone may write its files.

        `replaces` is the attempt whose output the new one is to replace, or 0. If an output is
        published that is another attempt, there is nothing to do: returns that output instead.
        """
        records = self.records(task)
        if (published := _other_than(replaces, records)) is not None:
            return published
        generation = len(records) + 1
        for attempt in count(1):
            claim = Claim(attempt=attempt, generation=generation, claimed_at_ms=now_ms)
            key = task.claim(attempt)
            if self._objects.head(key) is None and self._objects.put_if_absent(
                key, encode_record(claim)
            ):
                return claim
        raise AssertionError("there is always another number")

    def claimable(self, task: MapTask, replaces: int) -> PublishedOutput | None:
        """Return the output that `claim` would return instead of an attempt; None for an attempt.

        Ask before the map task is computed: another application may have been faster.
        """
        return _other_than(replaces, self.records(task))

    def register(self, output: PublishedOutput) -> PublishedOutput:
        """Publish an attempt whose files are all stored, and return who won its generation.

        Raises FencedError if cleanup gave the attempt up before.
        """
        task, key = output.task, output.task.publication(output.generation)
        if self._objects.put_if_absent(key, encode_record(output)):
            return output
        winner = self._record(task, output.generation)
        if winner.is_void:
            raise FencedError(
                f"cleanup gave up {output} before it was published", do="run the map task again"
            )
        return winner

    def void(self, task: MapTask, generation: int) -> bool:
        """Rule that no attempt becomes a generation that is not published yet.

        Returns False if an attempt was published as this generation before.
        """
        key = task.publication(generation)
        if self._objects.put_if_absent(key, encode_record(void(task, generation))):
            return True
        return self._record(task, generation).is_void

    def withdraw(self, output: PublishedOutput) -> None:
        """Make an output that a later generation has replaced unknown to readers."""
        record = void(output.task, output.generation)
        self._objects.put(output.task.publication(output.generation), encode_record(record))

    def latest(self, task: MapTask) -> PublishedOutput | None:
        """Return the latest published output of a map task; None if there is none.

        Raises DamagedOutputError if the newest record is damaged.
        """
        records = self.records(task)
        if records and isinstance(records[-1], DamagedOutputError):
            raise records[-1]
        return _latest(records)

    def lookup(self, task: MapTask, attempt: int = LATEST) -> PublishedOutput:
        """Return a published output, by default the latest.

        Raises NotFoundError if the attempt is not published.
        """
        if check_attempt(attempt) == LATEST:
            found = self.latest(task)
        else:
            outputs = (each for each in self.records(task) if isinstance(each, PublishedOutput))
            found = next((each for each in outputs if each.attempt == attempt), None)
        if found is None:
            raise NotFoundError(
                f"map output not registered for requested attempt: {task}, "
                f"attempt {attempt or 'latest'}",
                do="run the map task first, or ask for an attempt that is published",
            )
        return found

    def published(self, query_id: int, stage_id: int) -> dict[int, PublishedOutput]:
        """Return the latest output of every map task of a stage that has one, by map task.

        Raises DamagedOutputError if the newest record of a map task is damaged.
        """
        found = self.find(query_id, stage_id)
        for each in found.values():
            if isinstance(each, DamagedOutputError):
                raise each
        return {name: each for name, each in found.items() if isinstance(each, PublishedOutput)}

    def find(self, query_id: int, stage_id: int) -> dict[int, PublishedOutput | DamagedOutputError]:
        """Return the same, with an error for each map task whose newest record is damaged.

        Lists once, however many map tasks there are.
        """
        generations: dict[int, int] = {}
        for info in self._objects.list(f"{stage_directory(query_id, stage_id)}/{PUBLISHED}"):
            if numbers := numbers_of(info.key.rpartition("/")[2]):
                map_task, generation = numbers
                generations[map_task] = max(generation, generations.get(map_task, 0))

        def newest(map_task: int) -> PublishedOutput | DamagedOutputError | None:
            task = MapTask(query_id, stage_id, map_task)
            for generation in range(generations[map_task], 0, -1):
                try:
                    record = self._record(task, generation)
                except DamagedOutputError as error:
                    return error
                if not record.is_void:
                    return record
            return None

        with ThreadPoolExecutor(_READS_AT_ONCE) as threads:
            names = sorted(generations)
            records = zip(names, threads.map(newest, names), strict=True)
            return {name: each for name, each in records if each is not None}

    def records(self, task: MapTask) -> list[PublishedOutput | DamagedOutputError]:
        """Return the record of each generation, the first one first; an error if it is damaged."""
        found: list[PublishedOutput | DamagedOutputError] = []
        for generation in count(1):
            try:
                found.append(self._record(task, generation))
            except DamagedOutputError as error:
                found.append(error)
            except NotFoundError:
                break
        return found

    def _record(self, task: MapTask, generation: int) -> PublishedOutput:
        data = self._objects.get(task.publication(generation))
        return decode_publication(data, task, generation)


def _other_than(
    replaces: int, records: list[PublishedOutput | DamagedOutputError]
) -> PublishedOutput | None:
    """Return the latest output, unless it is the attempt that is to be replaced."""
    published = _latest(records)
    return published if published is not None and published.attempt != replaces else None


def _latest(records: list[PublishedOutput | DamagedOutputError]) -> PublishedOutput | None:
    """Return the newest output that is not void; None if the newest record is damaged."""
    for record in reversed(records):
        if isinstance(record, DamagedOutputError):
            return None
        if not record.is_void:
            return record
    return None

"""The bindings of a simulated task, and how restarts change them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from random import Random

from msgspec.structs import replace

from headrace.clock import CLOCK_MAX, ZERO, Clock
from headrace.frontier import BindingTag
from headrace.journal import collection as collections
from headrace.journal.local.records import CollectionPut
from headrace.journal.names import Selector
from headrace.shuffle.binding import Binding, Sources, resolve
from headrace.testing.shuffle.kinds import Kind
from headrace.testing.shuffle.memory_journal import SCHEMA, Document, Journal
from headrace.testing.shuffle.world import PARTITIONS

COLLECTIONS = ("a", "b", "c")
PARTITIONED = "c"
DELAYS = (0, 0, 0, 20, 60)
_BINDINGS_MAX = 5
_FIRST_CLOCK = 1_000

_COLLECTIONS = {
    name: collections.Collection(
        CollectionPut(
            name,
            (SCHEMA.serialize().to_pybytes(),),
            ("key",),
            ("key",) if name == PARTITIONED else (),
            id=id,
        )
    )
    for id, name in enumerate(COLLECTIONS, 1)
}


def reads(binding: Binding, journal: Journal) -> bool:
    """True if the binding selects the journal."""
    if binding.collection != journal.collection:
        return False
    selector, value = binding.selector or Selector(), str(journal.key)
    included = selector.include.get("key")
    return (included is None or value in included) and value not in selector.exclude.get("key", ())


def is_in_window(binding: Binding, document: Document) -> bool:
    return binding.not_before <= document.clock <= binding.not_after


def resolve_in_ticks(bindings: Sequence[Binding], known: Mapping[BindingTag, str]) -> Sources:
    """Resolve bindings whose read delays are in clock units, so that time passes quickly."""
    delays = {binding.name: int(binding.read_delay_s) for binding in bindings}
    found = resolve(bindings, _COLLECTIONS, known)
    return Sources(replace(source, delay=delays[source.name]) for source in found.all)


class Bindings:
    """The bindings of the task, and those that a restart removed from it."""

    def __init__(self, rng: Random, counts: Counter[Kind]) -> None:
        self._rng = rng
        self._counts = counts
        self._created = 0
        names = rng.choice([COLLECTIONS, ("a", "b"), ("a", "a", "b"), ("c", "c", "a")])
        self.all = [self._binding(name) for name in names]
        self._removed: list[Binding] = []

    def _binding(self, collection: str) -> Binding:
        rng = self._rng
        self._created += 1
        begin, end = sorted(rng.randrange(80) for _ in range(2))
        not_before, not_after = rng.choice(
            [(ZERO, CLOCK_MAX)] * 4
            + [(_FIRST_CLOCK + begin, CLOCK_MAX), (ZERO, _FIRST_CLOCK + end)]
        )
        binding = Binding(
            collection=collection,
            name=f"{collection}.{self._created}",
            selector=self._selector(collection),
            key=rng.choice([None, ()]),
            not_before=Clock(not_before),
            not_after=Clock(not_after),
        )
        return self._in_random_cohort(binding)

    def _selector(self, collection: str) -> Selector | None:
        if collection != PARTITIONED:
            return None
        some = tuple(str(key) for key in range(PARTITIONS) if self._rng.random() < 0.6)
        return self._rng.choice(
            [None, Selector(include={"key": some}), Selector(exclude={"key": some[:1]})]
        )

    def _in_random_cohort(self, binding: Binding) -> Binding:
        """The binding in a random cohort."""
        priority, delay = self._rng.choice([1, 1, 1, 0]), self._rng.choice(DELAYS)
        return replace(binding, priority=priority, read_delay_s=float(delay))

    def resolve(self, known: Mapping[BindingTag, str]) -> Sources:
        return resolve_in_ticks(self.all, known)

    def change(self, fixed: Collection[str]) -> bool:
        """Change the bindings as a restart may; return True if any changed.

        A `fixed` binding must go on reading what it reads.
        """
        change = self._rng.choice(
            [self._add, self._remove, self._bring_back, self._move] * 2 + [self._reselect]
        )
        before = list(self.all)
        change(fixed)
        self._rng.shuffle(self.all)
        return sorted(before, key=lambda each: each.name) != sorted(
            self.all, key=lambda each: each.name
        )

    def _add(self, _: Collection[str]) -> None:
        if len(self.all) < _BINDINGS_MAX:
            self.all.append(self._binding(self._rng.choice(COLLECTIONS)))
            self._counts[Kind.BINDING_ADDED] += 1

    def _remove(self, fixed: Collection[str]) -> None:
        free = [each for each in self.all if each.name not in fixed]
        if free and len(self.all) > 1:
            removed = self._rng.choice(free)
            self.all.remove(removed)
            self._removed.append(removed)
            self._counts[Kind.BINDING_REMOVED] += 1

    def _bring_back(self, _: Collection[str]) -> None:
        if self._removed:
            back = self._removed.pop(self._rng.randrange(len(self._removed)))
            self.all.append(self._rng.choice([back, self._in_random_cohort(back)]))
            self._counts[Kind.BINDING_BACK] += 1

    def _move(self, _: Collection[str]) -> None:
        index = self._rng.randrange(len(self.all))
        before, after = self.all[index], self._in_random_cohort(self.all[index])
        self.all[index] = after
        self._counts[Kind.BINDING_MOVED] += after != before

    def _reselect(self, fixed: Collection[str]) -> None:
        found = [
            index
            for index, each in enumerate(self.all)
            if each.collection == PARTITIONED and each.name not in fixed
        ]
        if found:
            index = self._rng.choice(found)
            before, selector = self.all[index], self._selector(PARTITIONED)
            self.all[index] = replace(before, selector=selector)
            self._counts[Kind.SELECTOR_CHANGED] += selector != before.selector

    def count_delays(self) -> None:
        delays = {(each.priority, each.read_delay_s) for each in self.all}
        priorities = {priority for priority, _ in delays}
        self._counts[Kind.SEVERAL_DELAYS] += len(delays) > len(priorities)

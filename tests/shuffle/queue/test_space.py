"""What of a Queue's file is kept, and what of that for nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest

from headrace.errors import UsageError
from headrace.shuffle.queue.space import Account, FileSpace

SIZE = 10


def passed(*sizes: int, end: int = 1000) -> FileSpace:
    """Blocks at 0, 100, 200, …, all open."""
    needed = FileSpace()
    for at, size in enumerate(sizes):
        needed.passed(100 * at, size)
    needed.end = end
    return needed


def test_everything_is_open_at_first_and_kept() -> None:
    needed = passed(10, 20, 30)
    assert needed.kept_from == 0
    assert needed.account() == Account(0, 0, 60, 0, 0, 0)


def test_nothing_is_kept_once_all_is_closed() -> None:
    needed = passed(10, 20)
    needed.closed([0, 100])
    assert needed.kept_from == 1000
    assert needed.account() == Account(given_back_bytes=30)


def test_the_first_block_that_is_open_keeps_what_comes_after_it() -> None:
    needed = passed(10, 20, 30, 40)
    needed.closed([0, 200])
    assert needed.kept_from == 100
    assert needed.account() == Account(10, 30, 60)


# proves G10
def test_what_a_checkpoint_shows_is_kept_until_it_is_released() -> None:
    needed = passed(10, 20, 30)
    needed.read(1, [0, 100])
    needed.closed([0, 100])
    assert (needed.kept_from, needed.account()) == (0, Account(0, 0, 30, 30, 1, 0))
    needed.read(2, [200])
    needed.closed([200])
    needed.release(1)
    assert (needed.kept_from, needed.account()) == (200, Account(30, 0, 0, 30, 2, 1))
    needed.release(2)
    assert (needed.kept_from, needed.account()) == (1000, Account(60, 0, 0, 0, 2, 2))


def test_a_block_of_several_checkpoints_is_kept_for_the_last_of_them() -> None:
    needed = passed(10)
    needed.read(1, [0])
    needed.read(2, [0])
    needed.closed([0])
    needed.release(1)
    assert needed.kept_from == 0
    needed.release(2)
    assert needed.kept_from == 1000


def test_checkpoints_are_read_in_order_and_released_once_read() -> None:
    needed = passed(10)
    needed.read(1, [])
    for number in (1, 3):
        with pytest.raises(UsageError, match=f"checkpoint {number} is read after 1"):
            needed.read(number, [])
    with pytest.raises(UsageError, match="checkpoint 2 is released, and 1 was read last"):
        needed.release(2)
    needed.release(1)
    needed.release(1)


# proves G12
def test_a_block_that_was_moved_keeps_nothing_where_it_was() -> None:
    needed = passed(10, 20, 30)
    needed.closed([100])
    assert needed.move(SIZE) == {0: 0}
    needed.copying({0: 1100})
    assert needed.kept_from == 0, "it is not known to be there"
    needed.copied()
    assert (needed.location(0), needed.kept_from) == (1100, 200)
    assert needed.account() == Account(30, 0, 40)
    needed.passed(1000, 40)
    needed.passed(1100, 10, is_copy=True)
    needed.end = 2000
    needed.closed([200, 1000])
    assert (needed.kept_from, needed.account()) == (1100, Account(100, 0, 10))
    needed.closed([0])
    assert (needed.kept_from, needed.account()) == (2000, Account(110))


def test_a_block_can_be_moved_again() -> None:
    needed = passed(10)
    needed.move(SIZE)
    needed.copying({0: 1100})
    needed.copied()
    needed.passed(1100, 10, is_copy=True)
    needed.end = 1200
    assert needed.move(SIZE) == {0: 1100}
    needed.copying({0: 1300})
    needed.copied()
    assert (needed.location(0), needed.kept_from) == (1300, 1200)


@pytest.mark.parametrize("shown_when", ["before", "after"])
def test_what_a_checkpoint_shows_stays_where_it_is(shown_when: str) -> None:
    """Readers were told where; also of a block that is being copied."""
    needed = passed(10, 20)
    if shown_when == "before":
        needed.read(1, [0])
        assert needed.move(SIZE) == {}
    else:
        assert needed.move(SIZE) == {0: 0}
        needed.copying({0: 1100})
        needed.read(1, [0])
        needed.copied()
    assert (needed.location(0), needed.kept_from) == (0, 0)
    needed.release(1)
    assert needed.move(SIZE) == {0: 0}


def test_a_block_that_closes_while_it_is_copied_is_kept_until_that_is_done() -> None:
    """What is copied from it is still to be written."""
    needed = passed(10, 20)
    assert needed.move(SIZE) == {0: 0}
    needed.closed([0, 100])
    needed.copied()
    assert (needed.kept_from, needed.account()) == (0, Account(0, 20)), "it is yet to be copied"
    needed.copying({0: 1100})
    assert needed.kept_from == 0
    needed.copied()
    assert (needed.kept_from, needed.account()) == (1000, Account(30))


def test_a_copy_that_was_passed_over_unrecognized_is_of_no_use() -> None:
    needed = passed(10)
    needed.move(SIZE)
    needed.passed(1000, 10, is_copy=True)
    needed.end = 1100
    needed.copying({0: 1000})
    needed.copied()
    assert (needed.location(0), needed.kept_from) == (0, 0)
    assert needed.account() == Account(0, 10, 10)


def test_blocks_are_moved_from_the_front_and_up_to_what_is_shown() -> None:
    needed = passed(10, 10, 10, 10, 10)
    needed.read(1, [300])
    assert needed.move(1) == {0: 0}
    assert needed.move(29) == {0: 0, 100: 100}
    assert needed.move(1000) == {0: 0, 100: 100, 200: 200}


def test_what_lies_behind_a_shown_block_cannot_be_given_back_by_moving() -> None:
    needed = passed(10, 20, 30, 40)
    needed.read(1, [200])
    needed.closed([100, 300])
    assert needed.account() == Account(0, 20, 10, 30, 1)
    needed.release(1)
    assert needed.account() == Account(0, 60, 40, 0, 1, 1, 30)


@dataclass
class Entry:
    at: int
    size: int
    position: int
    """Of the block that it is, or is a copy of."""


@dataclass
class File:
    """A file, everything that happens to it, and a plain account of what must be kept."""

    rng: Random
    needed: FileSpace = field(default_factory=FileSpace)
    entries: list[Entry] = field(default_factory=list)
    durable: int = 0
    """How many entries are."""
    open: set[int] = field(default_factory=set)
    shown: dict[int, list[int]] = field(default_factory=dict)
    shown_ever: set[int] = field(default_factory=set)
    located: dict[int, int] = field(default_factory=dict)
    """Where readers were told that shown blocks are."""
    checkpoints: int = 0
    kept_from: int = 0
    copying: bool = False
    copied_from: dict[int, int] = field(default_factory=dict)
    """Where blocks are that are being copied, by where they will be."""

    def add(self, size: int, position: int | None = None) -> int:
        at = self.entries[-1].at + self.entries[-1].size if self.entries else 0
        self.entries.append(Entry(at, size, at if position is None else position))
        return at

    def end(self, count: int) -> int:
        return self.entries[count - 1].at + self.entries[count - 1].size if count else 0

    def write(self) -> None:
        self.add(self.rng.randint(1, 9))

    def sync(self) -> None:
        self.durable = self.rng.randint(self.durable, len(self.entries))

    def copy(self) -> None:
        if not self.copying:
            self.copying = True
            sizes = {each.position: each.size for each in self.entries}
            found = self.needed.move(self.rng.randint(1, 30))
            copies = {at: self.add(sizes[at], at) for at in found}
            self.needed.copying(copies)
            self.copied_from = {copies[at]: location for at, location in found.items()}

    def settle(self) -> None:
        if self.copying:
            self.durable = len(self.entries)
            self.needed.copied()
            self.copying = False
            self.copied_from = {}

    def read(self) -> None:
        end = self.end(self.durable)
        self.needed.copied(end)
        self.copied_from = {to: at for to, at in self.copied_from.items() if to >= end}
        for each in self.entries:
            if self.needed.end <= each.at < end:
                is_copy = each.at != each.position
                self.needed.passed(each.at, each.size, is_copy=is_copy)
                if not is_copy:
                    self.open.add(each.position)
        self.needed.end = end
        self.checkpoints += 1
        some = [at for at in sorted(self.open) if self.rng.random() < 0.4]
        self.shown[self.checkpoints] = some
        self.shown_ever |= set(some)
        self.needed.read(self.checkpoints, some)
        self.located |= {at: self.needed.location(at) for at in some}
        closed = [at for at in sorted(self.open) if self.rng.random() < 0.3]
        self.open -= set(closed)
        self.needed.closed(closed)

    def release(self) -> None:
        if self.checkpoints:
            number = self.rng.randint(max(1, self.checkpoints - 2), self.checkpoints)
            self.shown = {n: some for n, some in self.shown.items() if n > number}
            self.needed.release(number)

    def check(self) -> None:
        shown = {at for some in self.shown.values() for at in some}
        self.located = {at: where for at, where in self.located.items() if at in shown}
        assert self.located == {at: self.needed.location(at) for at in shown}
        wanted = {self.needed.location(at): at for at in self.open | shown}
        found = {each.at: each.position for each in self.entries[: self.durable]}
        assert wanted.items() <= found.items(), "each is where it is said to be, and durable"
        end = self.needed.end
        kept = {*wanted, *self.copied_from.values()}
        assert self.needed.kept_from == min([end, *kept])
        assert self.kept_from <= self.needed.kept_from
        self.kept_from = self.needed.kept_from
        limit = min([end, *self.located.values()])
        of = {each.position: each.size for each in self.entries}
        assert self.needed.account() == Account(
            sum(each.size for each in self.entries if each.at < self.kept_from),
            sum(
                e.size for e in self.entries if self.kept_from <= e.at < limit and e.at not in kept
            ),
            sum(of[at] for at in self.open - shown),
            sum(of[at] for at in shown),
            self.checkpoints,
            self.needed.account().released,
            sum(of[at] for at in (self.open - shown) & self.shown_ever),
        )


# proves G10, G12
@pytest.mark.parametrize("seed", range(200))
def test_in_any_history_what_is_needed_is_kept_and_the_account_is_true(seed: int) -> None:
    file = File(Random(seed))
    deeds = [file.write, file.write, file.sync, file.copy, file.settle, file.read, file.release]
    for _ in range(150):
        file.rng.choice(deeds)()
        file.check()
    assert file.kept_from > 0
    file.settle()
    file.durable = len(file.entries)
    file.read()
    file.needed.closed(sorted(file.open))
    file.open.clear()
    file.needed.release(file.checkpoints)
    file.shown.clear()
    file.check()
    assert file.kept_from == file.needed.end == file.end(len(file.entries))

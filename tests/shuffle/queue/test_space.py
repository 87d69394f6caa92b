"""A Queue keeps the parts of its file that somebody needs, and its counts are true."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

import pytest

from headrace.errors import UsageError
from headrace.shuffle.queue.space import FileSpace

SIZE = 10


class Account(NamedTuple):
    """What a FileSpace counts."""

    given_back_bytes: int = 0
    unneeded_bytes: int = 0
    open_bytes: int = 0
    shown_bytes: int = 0
    last_read: int = 0
    last_released: int = 0
    partly_shown_bytes: int = 0


def account(space: FileSpace) -> Account:
    space.validate()
    return Account(*(getattr(space, name) for name in Account._fields))


def scanned(*sizes: int, end: int = 1000) -> FileSpace:
    """Return the space of a file with open blocks at 0, 100, 200, …"""
    space = FileSpace()
    for number, size in enumerate(sizes):
        space.wrote(size)
        space.scanned(100 * number, size)
    space.scanned_to = end
    return space


def test_everything_is_open_at_first_and_kept() -> None:
    space = scanned(10, 20, 30)
    assert space.kept_from == 0
    assert account(space) == Account(0, 0, 60, 0, 0, 0)


def test_nothing_is_kept_once_all_is_closed() -> None:
    space = scanned(10, 20)
    space.closed([0, 100])
    assert space.kept_from == 1000
    assert account(space) == Account(given_back_bytes=30)


def test_the_first_block_that_is_open_keeps_what_comes_after_it() -> None:
    space = scanned(10, 20, 30, 40)
    space.closed([0, 200])
    assert space.kept_from == 100
    assert account(space) == Account(10, 30, 60)


# proves G10
def test_what_a_checkpoint_shows_is_kept_until_it_is_released() -> None:
    space = scanned(10, 20, 30)
    space.read(1, [0, 100])
    space.closed([0, 100])
    assert (space.kept_from, account(space)) == (0, Account(0, 0, 30, 30, 1, 0))
    space.read(2, [200])
    space.closed([200])
    space.release(1)
    assert (space.kept_from, account(space)) == (200, Account(30, 0, 0, 30, 2, 1))
    space.release(2)
    assert (space.kept_from, account(space)) == (1000, Account(60, 0, 0, 0, 2, 2))


def test_a_block_of_several_checkpoints_is_kept_for_the_last_of_them() -> None:
    space = scanned(10)
    space.read(1, [0])
    space.read(2, [0])
    space.closed([0])
    space.release(1)
    assert space.kept_from == 0
    space.release(2)
    assert space.kept_from == 1000


def test_checkpoints_are_read_in_order_and_released_once_read() -> None:
    space = scanned(10)
    space.read(1, [])
    for number in (1, 3):
        with pytest.raises(UsageError, match=f"{number} cannot be read after checkpoint 1"):
            space.read(number, [])
    with pytest.raises(UsageError, match="2 cannot be released: the last one read is 1"):
        space.release(2)
    space.release(1)
    space.release(1)


# proves G12
def test_a_block_that_was_moved_keeps_nothing_where_it_was() -> None:
    space = scanned(10, 20, 30)
    space.closed([100])
    assert space.start_copies(SIZE) == {0: 0}
    space.copies_written({0: 1100})
    assert space.kept_from == 0, "it is not known to be there"
    space.copies_durable()
    assert (space.location(0), space.kept_from) == (1100, 200)
    assert account(space) == Account(30, 0, 40)
    space.wrote(40)
    space.scanned(1000, 40)
    space.scanned(1100, 10, is_copy=True)
    space.scanned_to = 2000
    space.closed([200, 1000])
    assert (space.kept_from, account(space)) == (1100, Account(100, 0, 10))
    space.closed([0])
    assert (space.kept_from, account(space)) == (2000, Account(110))


def test_a_block_can_be_moved_again() -> None:
    space = scanned(10)
    space.start_copies(SIZE)
    space.copies_written({0: 1100})
    space.copies_durable()
    space.scanned(1100, 10, is_copy=True)
    space.scanned_to = 1200
    assert space.start_copies(SIZE) == {0: 1100}
    space.copies_written({0: 1300})
    space.copies_durable()
    assert (space.location(0), space.kept_from) == (1300, 1200)


@pytest.mark.parametrize("shown_when", ["before", "after"])
def test_what_a_checkpoint_shows_stays_where_it_is(shown_when: str) -> None:
    """Readers know its location. This holds also for a block that is being copied."""
    space = scanned(10, 20)
    if shown_when == "before":
        space.read(1, [0])
        assert space.start_copies(SIZE) == {}
    else:
        assert space.start_copies(SIZE) == {0: 0}
        space.copies_written({0: 1100})
        space.read(1, [0])
        space.copies_durable()
    assert (space.location(0), space.kept_from) == (0, 0)
    space.release(1)
    assert space.start_copies(SIZE) == {0: 0}


def test_a_block_that_closes_while_it_is_copied_is_kept_until_that_is_done() -> None:
    """The Queue has yet to write the copy."""
    space = scanned(10, 20)
    assert space.start_copies(SIZE) == {0: 0}
    space.closed([0, 100])
    space.copies_durable()
    assert (space.kept_from, account(space)) == (0, Account(0, 20)), "it is yet to be copied"
    space.copies_written({0: 1100})
    assert space.kept_from == 0
    space.copies_durable()
    assert (space.kept_from, account(space)) == (1000, Account(30))


def test_a_copy_that_was_passed_over_unrecognized_is_of_no_use() -> None:
    space = scanned(10)
    space.start_copies(SIZE)
    space.scanned(1000, 10, is_copy=True)
    space.scanned_to = 1100
    space.copies_written({0: 1000})
    space.copies_durable()
    assert (space.location(0), space.kept_from) == (0, 0)
    assert account(space) == Account(0, 10, 10)


@pytest.mark.parametrize(("bytes_max", "count"), [(1, 1), (29, 2), (30, 3), (1000, 3)])
def test_blocks_are_copied_from_the_front_and_up_to_what_is_shown(
    bytes_max: int, count: int
) -> None:
    space = scanned(10, 10, 10, 10, 10)
    space.read(1, [300])
    assert space.start_copies(bytes_max) == {100 * n: 100 * n for n in range(count)}


# proves G12
def test_neither_a_copy_nor_what_it_gives_back_counts() -> None:
    space = scanned(10, 20, 30)
    space.closed([100])
    assert (space.held_bytes, space.needed_bytes) == (60, 40)
    space.start_copies(SIZE)
    assert (space.held_bytes, space.needed_bytes) == (70, 40), "as soon as it is decided"
    space.copies_written({0: 1100})
    space.copies_durable()
    assert (space.held_bytes, space.needed_bytes) == (40, 40)


def test_what_lies_behind_a_shown_block_cannot_be_given_back_by_moving() -> None:
    space = scanned(10, 20, 30, 40)
    space.read(1, [200])
    space.closed([100, 300])
    assert account(space) == Account(0, 20, 10, 30, 1)
    space.release(1)
    assert account(space) == Account(0, 60, 40, 0, 1, 1, 30)


@dataclass
class Entry:
    location: int
    size: int
    position: int
    """Where the block was first written; the location itself unless this is a copy."""


@dataclass
class File:
    """A file to which random things happen, and a plain account of what must be kept."""

    rng: Random
    space: FileSpace = field(default_factory=FileSpace)
    entries: list[Entry] = field(default_factory=list)
    durable: int = 0
    """The number of entries that are durable."""
    open: set[int] = field(default_factory=set)
    shown: dict[int, list[int]] = field(default_factory=dict)
    shown_ever: set[int] = field(default_factory=set)
    located: dict[int, int] = field(default_factory=dict)
    """The locations of shown blocks, as readers know them."""
    checkpoints: int = 0
    kept_from: int = 0
    copying: bool = False
    copied_from: dict[int, int] = field(default_factory=dict)
    """The location of each block that is being copied, by the location of its copy."""

    def add(self, size: int, position: int | None = None) -> int:
        location = self.end(len(self.entries))
        self.entries.append(Entry(location, size, location if position is None else position))
        return location

    def end(self, count: int) -> int:
        return self.entries[count - 1].location + self.entries[count - 1].size if count else 0

    def write(self) -> None:
        size = self.rng.randint(1, 9)
        self.space.wrote(size)
        self.add(size)

    def sync(self) -> None:
        self.durable = self.rng.randint(self.durable, len(self.entries))

    def copy(self) -> None:
        if not self.copying:
            self.copying = True
            sizes = {each.position: each.size for each in self.entries}
            found = self.space.start_copies(self.rng.randint(1, 30))
            copies = {position: self.add(sizes[position], position) for position in found}
            self.space.copies_written(copies)
            self.copied_from = {copies[position]: old for position, old in found.items()}

    def settle(self) -> None:
        if self.copying:
            self.durable = len(self.entries)
            self.space.copies_durable()
            self.copying = False
            self.copied_from = {}

    def read(self) -> None:
        end = self.end(self.durable)
        self.space.copies_durable(end)
        self.copied_from = {new: old for new, old in self.copied_from.items() if new >= end}
        for each in self.entries:
            if self.space.scanned_to <= each.location < end:
                is_copy = each.location != each.position
                self.space.scanned(each.location, each.size, is_copy=is_copy)
                if not is_copy:
                    self.open.add(each.position)
        self.space.scanned_to = end
        self.checkpoints += 1
        shown = [block for block in sorted(self.open) if self.rng.random() < 0.4]
        self.shown[self.checkpoints] = shown
        self.shown_ever |= set(shown)
        self.space.read(self.checkpoints, shown)
        self.located |= {block: self.space.location(block) for block in shown}
        closed = [block for block in sorted(self.open) if self.rng.random() < 0.3]
        self.open -= set(closed)
        self.space.closed(closed)

    def release(self) -> None:
        if self.checkpoints:
            number = self.rng.randint(max(1, self.checkpoints - 2), self.checkpoints)
            self.shown = {n: blocks for n, blocks in self.shown.items() if n > number}
            self.space.release(number)

    def check(self) -> None:
        shown = {block for blocks in self.shown.values() for block in blocks}
        self.located = {block: where for block, where in self.located.items() if block in shown}
        assert self.located == {block: self.space.location(block) for block in shown}
        needed = {self.space.location(block): block for block in self.open | shown}
        found = {each.location: each.position for each in self.entries[: self.durable]}
        assert needed.items() <= found.items(), "each block is durable at its location"
        end = self.space.scanned_to
        kept = {*needed, *self.copied_from.values()}
        assert self.space.kept_from == min([end, *kept])
        assert self.kept_from <= self.space.kept_from
        self.kept_from = self.space.kept_from
        held = [each.size for each in self.entries if each.location >= self.kept_from]
        assert self.space.held_bytes == sum(held)
        limit = min([end, *self.located.values()])
        sizes = {each.position: each.size for each in self.entries}
        assert account(self.space) == Account(
            sum(each.size for each in self.entries if each.location < self.kept_from),
            sum(
                each.size
                for each in self.entries
                if self.kept_from <= each.location < limit and each.location not in kept
            ),
            sum(sizes[block] for block in self.open - shown),
            sum(sizes[block] for block in shown),
            self.checkpoints,
            self.space.last_released,
            sum(sizes[block] for block in (self.open - shown) & self.shown_ever),
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
    file.space.closed(sorted(file.open))
    file.open.clear()
    file.space.release(file.checkpoints)
    file.shown.clear()
    file.check()
    assert file.kept_from == file.space.scanned_to == file.end(len(file.entries))

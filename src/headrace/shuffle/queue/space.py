"""What of a Queue's file is still needed. Pure.

The file is passed over once, entry by entry. A block is needed while more of it may be shown (it is
open) and while a checkpoint that shows it is not released. Space is given back from the front, up
to the first block that is needed. So that an open one does not keep all that came after it, it can
be copied to the end; it is still known by the position it had at first. A block that a checkpoint
shows stays where it is, since readers were told where that is; and so does one that is being copied
from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from headrace.errors import UsageError


class Account(NamedTuple):
    """What the part of the file counts for that was passed over."""

    given_back_bytes: int = 0
    """Of all that was ever passed over, what is not kept."""
    unneeded_bytes: int = 0
    """Kept for nothing but the open blocks before it: moving those would give it back."""
    open_bytes: int = 0
    shown_bytes: int = 0
    """Of blocks that checkpoints show which are not released."""
    read: int = 0
    """The last checkpoint that was read."""
    released: int = 0
    """The last one that was released."""
    partly_bytes: int = 0
    """Of the open blocks: those of which checkpoints that are released showed something."""


@dataclass(slots=True)
class _Block:
    size: int
    location: int
    """Where it is now."""
    before: int
    """What everything before it counts for."""
    open: bool = True
    shown: int = 0
    """By how many checkpoints that are not released."""
    is_partly: bool = False
    """Whether any checkpoint showed something of it."""


class FileSpace:
    def __init__(self) -> None:
        self.end = 0
        """Everything below was passed over."""
        self._passed_bytes = 0
        self._blocks: dict[int, _Block] = {}
        """By position, those that were passed over where they are now: in that order."""
        self._blocks_bytes = 0
        self._ahead: dict[int, _Block] = {}
        """Those that will be passed over where they are now."""
        self._copies: dict[int, int] = {}
        """The positions of those, by location."""
        self._copying: dict[int, int | None] = {}
        """Where blocks will be once that is durable, if that is known."""
        self._shown: dict[int, list[int]] = {}
        self._shown_bytes = 0
        self._open_bytes = 0
        self._partly_bytes = 0
        self._read = 0
        self._released = 0

    # -- passing over ----------------------------------------------------------------------

    def passed(self, at: int, size: int, *, is_copy: bool = False) -> None:
        """A block, or the copy of one."""
        if not is_copy:
            self._blocks[at] = _Block(size, at, self._passed_bytes)
            self._blocks_bytes += size
            self._open_bytes += size
        elif (position := self._copies.pop(at, None)) is not None:
            block = self._blocks[position] = self._ahead.pop(position)
            block.before = self._passed_bytes
            self._blocks_bytes += size
        self._passed_bytes += size

    def closed(self, positions: Iterable[int]) -> None:
        """Nothing more of these blocks will be shown."""
        for position in positions:
            block = self._block(position)
            block.open = False
            if not block.shown:
                self._count_open(block, -block.size)
                self._drop(position)

    # -- checkpoints -----------------------------------------------------------------------

    def check_read(self, number: int) -> None:
        if number != self._read + 1:
            raise UsageError(
                f"checkpoint {number} is read after {self._read}",
                do="read every checkpoint on every member, one after the other",
            )

    def read(self, number: int, positions: Iterable[int]) -> None:
        """The next checkpoint shows these blocks. Say `closed` afterwards."""
        self.check_read(number)
        self._read = number
        shown = self._shown[number] = list(positions)
        for position in shown:
            block = self._block(position)
            if not block.shown:
                self._count_open(block, -block.size)
                self._shown_bytes += block.size
            block.shown += 1
            block.is_partly = True

    def release(self, number: int) -> None:
        """Checkpoints up to this one are not read again."""
        if number > self._read:
            raise UsageError(
                f"checkpoint {number} is released, and {self._read} was read last",
                do="read it first",
            )
        for each in [shown for shown in self._shown if shown <= number]:
            for position in self._shown.pop(each):
                self._hide(position)
        self._released = max(self._released, number)

    def _hide(self, position: int) -> None:
        block = self._block(position)
        block.shown -= 1
        if block.shown:
            return
        self._shown_bytes -= block.size
        if block.open:
            self._count_open(block, block.size)
        else:
            self._drop(position)

    def _count_open(self, block: _Block, size: int) -> None:
        self._open_bytes += size
        if block.is_partly:
            self._partly_bytes += size

    # -- moving ----------------------------------------------------------------------------

    def move(self, bytes_max: int) -> dict[int, int]:
        """The first blocks, each with its location, if they are open: one at least.

        They are to be written again; each is kept where it is until that is durable.
        """
        found: dict[int, int] = {}
        size = 0
        for position, block in self._blocks.items():
            size += block.size
            if block.shown or (found and size > bytes_max):
                break
            found[position] = block.location
        self._copying |= dict.fromkeys(found)
        return found

    def copying(self, copies: Mapping[int, int]) -> None:
        """Where they were written again."""
        self._copying |= copies

    def copied(self, below: int | None = None) -> None:
        """What was written below is durable, or all of it. Say so before passing over it."""
        for position, location in list(self._copying.items()):
            if location is None or (below is not None and location >= below):
                continue
            del self._copying[position]
            block = self._blocks[position]
            if not (block.open or block.shown):
                self._drop(position)
            # One that was passed over before it was known to be a copy is of no use.
            elif not block.shown and location >= self.end:
                del self._blocks[position]
                self._blocks_bytes -= block.size
                block.location = location
                self._ahead[position] = block
                self._copies[location] = position

    # -- what there is ---------------------------------------------------------------------

    def location(self, position: int) -> int:
        """Where the block is now; where it was first if it is not needed."""
        block = self._blocks.get(position) or self._ahead.get(position)
        return block.location if block else position

    @property
    def kept_from(self) -> int:
        """What lies below is not needed."""
        first = next(iter(self._blocks.values()), None)
        return first.location if first else self.end

    def account(self) -> Account:
        first = next(iter(self._blocks.values()), None)
        given_back = first.before if first else self._passed_bytes
        return Account(
            given_back,
            self._unneeded_bytes(given_back),
            self._open_bytes,
            self._shown_bytes,
            self._read,
            self._released,
            self._partly_bytes,
        )

    def _unneeded_bytes(self, given_back: int) -> int:
        end, open_bytes = self._passed_bytes, self._blocks_bytes
        if end - given_back == open_bytes:
            return 0
        if self._shown:
            open_bytes = 0
            for block in self._blocks.values():
                if block.shown:
                    end = block.before
                    break
                open_bytes += block.size
        return end - given_back - open_bytes

    def _block(self, position: int) -> _Block:
        found = self._blocks.get(position)
        return self._ahead[position] if found is None else found

    def _drop(self, position: int) -> None:
        if position in self._copying:
            return
        if (block := self._blocks.pop(position, None)) is not None:
            self._blocks_bytes -= block.size
        else:
            del self._copies[self._ahead.pop(position).location]

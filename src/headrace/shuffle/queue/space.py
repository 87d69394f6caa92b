"""The one account of a Queue's file: which blocks are needed, and what they count for. Pure.

The Queue counts a block when it decides to write it. A reader scans the file once, entry by entry;
only then is the block known by its position. A block is *open* while a later checkpoint may show
more of it, and *shown* while a checkpoint that shows it is not released. The Queue needs open and
shown blocks, and gives space back from the front of the file, up to the first of these.

An open block at the front would keep everything behind it. So the Queue copies open blocks to the
end, a portion at a time; a copied block keeps the position it had first as its name. A shown block
stays where it is, because readers were told where that is. A block that is being copied stays until
its copy is durable.

    written ≥ scanned ≥ given back          what entered the file, what readers know, what is gone
    held   = written − given back           on disk
    needed = held − unneeded − copies       what counts against the limits of the Queue
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from headrace.errors import UsageError


@dataclass(slots=True)
class _Block:
    size: int
    location: int
    """Where the block is now."""
    before_bytes: int
    """What everything before `location` counts for, from the beginning of the file."""
    is_open: bool = True
    shown_by: int = 0
    """How many checkpoints show the block that are not released."""
    was_shown: bool = False
    """True if any checkpoint has shown some of the block."""

    @property
    def is_needed(self) -> bool:
        return self.is_open or self.shown_by > 0


class _Front(NamedTuple):
    given_back_bytes: int
    unneeded_bytes: int


class FileSpace:
    def __init__(self) -> None:
        self.scanned_to = 0
        """Readers have scanned everything below this position."""
        self.written_bytes = 0
        """All blocks and copies that were ever written."""
        self.open_bytes = 0
        """Blocks that are open and not shown."""
        self.shown_bytes = 0
        """Blocks that are shown."""
        self.partly_shown_bytes = 0
        """Of `open_bytes`: blocks of which released checkpoints have shown some rows."""
        self.last_read = 0
        """The number of the last checkpoint that was read."""
        self.last_released = 0
        """The number of the last checkpoint that was released."""
        self._scanned_bytes = 0
        self._blocks: dict[int, _Block] = {}
        """By position: blocks whose location was scanned, in the order of their locations."""
        self._blocks_bytes = 0
        self._ahead: dict[int, _Block] = {}
        """By position: blocks that were copied to where no reader has scanned yet."""
        self._copies: dict[int, int] = {}
        """The positions of the blocks in `_ahead`, by their locations."""
        self._copying: dict[int, int | None] = {}
        """By position: where the copy of a block will be, once that is known."""
        self._copying_bytes = 0
        self._shown: dict[int, list[int]] = {}
        """By checkpoint that is not released: the positions of the blocks that it shows."""
        self._front: _Front | None = None
        """What `_find_front` returned; None after a change."""

    # -- writing and scanning --------------------------------------------------------------

    def wrote(self, size: int) -> None:
        """The Queue decided to write a block of this size."""
        self.written_bytes += size

    def scanned(self, location: int, size: int, *, is_copy: bool = False) -> None:
        """A reader found a block, or the copy of one."""
        if not is_copy:
            self._blocks[location] = _Block(size, location, self._scanned_bytes)
            self._blocks_bytes += size
            self.open_bytes += size
        elif (position := self._copies.pop(location, None)) is not None:
            block = self._blocks[position] = self._ahead.pop(position)
            block.before_bytes = self._scanned_bytes
            self._blocks_bytes += size
        self._scanned_bytes += size
        self._front = None

    def closed(self, positions: Iterable[int]) -> None:
        """No later checkpoint will show any of these blocks."""
        for position in positions:
            block = self._block(position)
            block.is_open = False
            if not block.shown_by:
                self._count_open(block, -block.size)
                self._drop(position)
        self._front = None

    # -- checkpoints -----------------------------------------------------------------------

    def check_read(self, number: int) -> None:
        """Raises UsageError if this is not the next checkpoint to read."""
        if number != self.last_read + 1:
            raise UsageError(
                f"checkpoint {number} cannot be read after checkpoint {self.last_read}",
                do="read every checkpoint on every member, one after the other",
            )

    def read(self, number: int, positions: Iterable[int]) -> None:
        """The next checkpoint shows these blocks. Call `closed` afterwards."""
        self.check_read(number)
        self.last_read = number
        shown = self._shown[number] = list(positions)
        for position in shown:
            block = self._block(position)
            if not block.shown_by:
                self._count_open(block, -block.size)
                self.shown_bytes += block.size
            block.shown_by += 1
            block.was_shown = True
        self._front = None

    def release(self, number: int) -> None:
        """Nobody will read the checkpoints up to this one again."""
        if number > self.last_read:
            raise UsageError(
                f"checkpoint {number} cannot be released: the last one read is {self.last_read}",
                do="read a checkpoint on every member before you release it",
            )
        for released in [each for each in self._shown if each <= number]:
            for position in self._shown.pop(released):
                self._hide(position)
        self.last_released = max(self.last_released, number)
        self._front = None

    def _hide(self, position: int) -> None:
        block = self._block(position)
        block.shown_by -= 1
        if block.shown_by:
            return
        self.shown_bytes -= block.size
        if block.is_open:
            self._count_open(block, block.size)
        else:
            self._drop(position)

    def _count_open(self, block: _Block, size: int) -> None:
        self.open_bytes += size
        if block.was_shown:
            self.partly_shown_bytes += size

    # -- copying ---------------------------------------------------------------------------

    def start_copies(self, bytes_max: int) -> dict[int, int]:
        """Choose open blocks at the front to copy, one at least: their locations by position.

        Each stays where it is until its copy is durable.
        """
        assert not self._copying, "the portion before is not durable"
        found: dict[int, int] = {}
        size = 0
        for position, block in self._blocks.items():
            size += block.size
            if block.shown_by or (found and size > bytes_max):
                break
            found[position] = block.location
        self._copying |= dict.fromkeys(found)
        copied_bytes = sum(self._blocks[position].size for position in found)
        self._copying_bytes += copied_bytes
        self.written_bytes += copied_bytes
        return found

    def copies_written(self, locations: Mapping[int, int]) -> None:
        """The copies of these blocks begin at these locations."""
        self._copying |= locations

    def copies_durable(self, below: int | None = None) -> None:
        """Every copy is durable that begins below a position; without one, every copy is.

        Call this before you scan up to there.
        """
        for position, location in list(self._copying.items()):
            if location is None or (below is not None and location >= below):
                continue
            del self._copying[position]
            block = self._blocks[position]
            self._copying_bytes -= block.size
            if not block.is_needed:
                self._drop(position)
            # A copy that a reader scanned before its location was known is of no use.
            elif not block.shown_by and location >= self.scanned_to:
                del self._blocks[position]
                self._blocks_bytes -= block.size
                block.location = location
                self._ahead[position] = block
                self._copies[location] = position
        self._front = None

    @property
    def is_copying(self) -> bool:
        """True if a block stays only, or also, because its copy is not known to be durable."""
        return bool(self._copying)

    # -- what there is ---------------------------------------------------------------------

    def location(self, position: int) -> int:
        """Where the block is now; if it is not needed, where it was first."""
        block = self._blocks.get(position) or self._ahead.get(position)
        return block.location if block else position

    @property
    def kept_from(self) -> int:
        """Nothing below this position is needed."""
        first = next(iter(self._blocks.values()), None)
        return first.location if first else self.scanned_to

    @property
    def given_back_bytes(self) -> int:
        """Blocks and copies that lie below `kept_from`."""
        return self._find_front().given_back_bytes

    @property
    def unneeded_bytes(self) -> int:
        """What only open blocks before it keep: the Queue gets it back by copying those."""
        return self._find_front().unneeded_bytes

    @property
    def held_bytes(self) -> int:
        """What is on disk."""
        return self.written_bytes - self.given_back_bytes

    @property
    def needed_bytes(self) -> int:
        """What counts against the limits: neither what copying gives back, nor the copies."""
        return self.held_bytes - self.unneeded_bytes - self._copying_bytes

    def _find_front(self) -> _Front:
        # Cached, since the Queue asks for every block that it writes.
        if self._front is None:
            first = next(iter(self._blocks.values()), None)
            given_back_bytes = first.before_bytes if first else self._scanned_bytes
            self._front = _Front(given_back_bytes, self._count_unneeded(given_back_bytes))
        return self._front

    def _count_unneeded(self, given_back_bytes: int) -> int:
        end_bytes, kept_bytes = self._scanned_bytes, self._blocks_bytes
        if end_bytes - given_back_bytes == kept_bytes:
            return 0
        if self._shown:
            # A shown block stays, and keeps everything behind it.
            kept_bytes = 0
            for block in self._blocks.values():
                if block.shown_by:
                    end_bytes = block.before_bytes
                    break
                kept_bytes += block.size
        return end_bytes - given_back_bytes - kept_bytes

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

    # -- checking --------------------------------------------------------------------------

    def validate(self) -> None:
        """Raises AssertionError if a count is not the sum of its blocks, or a block is lost."""
        blocks = self._blocks | self._ahead
        assert len(blocks) == len(self._blocks) + len(self._ahead)
        front = self._front
        self._front = None
        assert front in (None, self._find_front()), "the front has moved unseen"
        assert 0 <= self.given_back_bytes <= self._scanned_bytes <= self.written_bytes
        assert self.unneeded_bytes >= 0
        assert 0 <= self.needed_bytes <= self.held_bytes
        assert 0 <= self.last_released <= self.last_read
        for number in self._shown:
            assert self.last_released < number <= self.last_read
        shows = Counter(position for positions in self._shown.values() for position in positions)
        assert shows == {p: each.shown_by for p, each in blocks.items() if each.shown_by}
        for position, block in blocks.items():
            assert block.is_needed or position in self._copying, "the block should be dropped"
        locations = [block.location for block in self._blocks.values()]
        assert locations == sorted(locations), "the blocks are in the order of the file"
        assert all(location < self.scanned_to for location in locations)
        assert {each.location: position for position, each in self._ahead.items()} == self._copies
        assert all(location >= self.scanned_to for location in self._copies)
        assert self._copying.keys() <= self._blocks.keys()
        self._validate_counts(blocks.values())

    def _validate_counts(self, blocks: Collection[_Block]) -> None:
        unshown = [each for each in blocks if each.is_open and not each.shown_by]
        assert self.open_bytes == sum(each.size for each in unshown)
        assert self.partly_shown_bytes == sum(each.size for each in unshown if each.was_shown)
        assert self.shown_bytes == sum(each.size for each in blocks if each.shown_by)
        assert self._blocks_bytes == sum(each.size for each in self._blocks.values())
        assert self._copying_bytes == sum(self._blocks[each].size for each in self._copying)

"""Checks the pages of an LMDB file before LMDB uses it: it ends its process at a page that is none.

A page begins with its own number and what it is. LMDB keeps two trees and, within one of them, the
trees of named tables. The walk goes down level by level, so a file costs little more than reading
it. Values are not looked at: each has a checksum of its own.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headrace.errors import DataError

LEAVES_BYTES_MAX = 256 << 20
"""Of larger files only the inner pages are looked at, so that opening stays fast."""

_MAGIC = 0xBEEFC0DE
_HEADER = struct.Struct("<QHHHH")  # number, padding, flags, lower and upper end of the free space
_HEAD = struct.Struct("<IIQQ")
_TREE = struct.Struct("<IHHQQQQQ")  # page size, flags, depth, counts of pages and entries, root
_NODE = struct.Struct("<HHHH")
_BRANCH, _LEAF = 1, 2
_NAMED_TREE = 2
_NO_PAGE = (1 << 64) - 1
_RESTORE = "restore the directory from a copy"

Pages = npt.NDArray[np.uint64]


def check_pages(path: Path) -> None:
    """Raise DataError if a page is missing, or is not what the tree says that it is."""
    if path.stat().st_size:
        _PageWalk(path).check()


class _PageWalk:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._bytes = np.memmap(path, np.uint8, "r")
        self._page_bytes = 0

    def check(self) -> None:
        pending = list(self._newest_trees())
        while pending:
            depth, root = pending.pop()
            if root != _NO_PAGE:
                pending += self._check_tree(depth, root)

    def _newest_trees(self) -> Iterator[tuple[int, int]]:
        """Return depth and root of the trees that the newer of the two heads names."""
        heads = {}
        self._page_bytes = 4096
        for _ in range(2):  # The first head tells where the second one is.
            for page in range(2):
                if (head := self._head(page)) is not None:
                    heads[head[0]] = head[1]
        if not heads:
            raise self._damage("has no head")
        trees = heads[max(heads)]
        return ((tree[2], tree[7]) for tree in trees)

    def _head(self, page: int) -> tuple[int, list[tuple[int, ...]]] | None:
        begin = page * self._page_bytes + _HEADER.size
        end = begin + _HEAD.size + 2 * _TREE.size + 16
        if end > len(self._bytes):
            raise self._damage(f"has lost its end: {len(self._bytes)} bytes are there")
        content = self._bytes[begin:end].tobytes()
        if _HEAD.unpack_from(content)[0] != _MAGIC:
            return None
        trees = [_TREE.unpack_from(content, _HEAD.size + n * _TREE.size) for n in range(2)]
        self._page_bytes = trees[0][0]
        return struct.unpack_from("<Q", content, len(content) - 8)[0], trees

    def _check_tree(self, depth: int, root: int) -> list[tuple[int, int]]:
        """Check the pages of one tree; return depth and root of those that are named in it."""
        pages = np.array([root], np.uint64)
        for _ in range(depth - 1):
            self._check_kind(pages, _BRANCH)
            pages = np.array([child for page in pages for child in self._children(int(page))])
        if depth == 1 or len(self._bytes) <= LEAVES_BYTES_MAX:
            self._check_kind(pages, _LEAF)
        if depth == 1:  # The names of tables fit into one page.
            return list(self._named_trees(root))
        return []

    def _check_kind(self, pages: Pages, kind: int) -> None:
        pages = pages.astype(np.uint64)
        begins = pages * np.uint64(self._page_bytes)
        there = begins + np.uint64(self._page_bytes) <= len(self._bytes)
        if not there.all():
            raise self._damage(
                f"has lost its end: page {pages[~there][0]} is not among its "
                f"{len(self._bytes)} bytes"
            )
        headers = self._bytes[begins[:, None] + np.arange(_HEADER.size, dtype=np.uint64)]
        numbers = headers[:, :8].copy().view("<u8")[:, 0]
        fields = headers[:, 10:16].copy().view("<u2")
        flags, lower, upper = fields[:, 0], fields[:, 1], fields[:, 2]
        whole = (
            (numbers == pages)
            & (flags & 3 == kind)
            & (lower >= _HEADER.size)
            & (lower <= upper)
            & (upper <= self._page_bytes)
        )
        if not whole.all():
            raise self._damage(f"is damaged at page {pages[~whole][0]}")

    def _nodes(self, page: int) -> Iterator[tuple[int, tuple[int, int, int, int]]]:
        begin = page * self._page_bytes
        content = self._bytes[begin : begin + self._page_bytes].tobytes()
        lower = _HEADER.unpack_from(content)[3]
        for at in struct.unpack_from(f"<{(lower - _HEADER.size) // 2}H", content, _HEADER.size):
            if at < lower or at + _NODE.size > self._page_bytes:
                raise self._damage(f"is damaged at page {page}")
            yield begin + at + _NODE.size, _NODE.unpack_from(content, at)

    def _children(self, page: int) -> Iterator[int]:
        for _, (low, middle, high, _) in self._nodes(page):
            yield low | middle << 16 | high << 32

    def _named_trees(self, page: int) -> Iterator[tuple[int, int]]:
        for at, (_, _, flags, key_bytes) in self._nodes(page):
            if flags & _NAMED_TREE:
                begin = at + key_bytes
                tree = _TREE.unpack(self._bytes[begin : begin + _TREE.size].tobytes())
                yield tree[2], tree[7]

    def _damage(self, what: str) -> DataError:
        return DataError(f"{self._path} {what}", do=_RESTORE)

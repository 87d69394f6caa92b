"""The client of a Session: it opens the Session, polls checkpoints and reads their documents."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import ExitStack, contextmanager
from typing import Any, Self

import numpy as np
import pyarrow as pa

from headrace.clock import COUNTER_BITS, TICKS_PER_SECOND
from headrace.errors import NotFoundError, TransportError, UsageError
from headrace.frontier import TAG_BITS
from headrace.journal.contract import JournalInfo, Watch
from headrace.journal.names import Selector
from headrace.journal.workspace import Workspace
from headrace.settings import ServiceSettings, ShuffleSettings
from headrace.shuffle import messages
from headrace.shuffle.batch.pinned_watch import CutWatch, check_cut
from headrace.shuffle.binding import Binding, Source, Sources, resolve
from headrace.shuffle.checkpoint import Checkpoint, NextCheckpoint
from headrace.shuffle.member.member_connections import check_addresses
from headrace.shuffle.messages import MemberAt
from headrace.shuffle.queue.queue_client import Share
from headrace.shuffle.routing import Range, check_tiling, split_evenly
from headrace.shuffle.session.actor import SessionActor
from headrace.shuffle.session.handler import open_consumers, open_slices
from headrace.shuffle.session.state import SessionState
from headrace.shuffle.session.status import SessionStatus
from headrace.shuffle.session_registry import Announcement

_KEPT_BACK_SHARE = 4
"""Progress that shows no document is published once it covers the soft limit of a Queue divided by
this number: until then the Queues keep what was rolled back."""


class Shuffle:
    """Reads the bindings of a task through members, from the checkpoint `last_commit` on.

    After a failure, pass the delta that the task got and did not commit as `read_through`: the
    first checkpoint is then exactly that one. Any failure ends the Shuffle, and every later call
    raises its cause.
    """

    def __init__(
        self,
        workspace: Workspace,
        bindings: Sequence[Binding],
        members: Sequence[str],
        *,
        ranges: Sequence[Range] | None = None,
        last_commit: Checkpoint | None = None,
        read_through: Checkpoint | None = None,
        cut: Sequence[JournalInfo] | None = None,
        settings: ShuffleSettings | None = None,
        service: ServiceSettings | None = None,
    ) -> None:
        """`members` are addresses. Without `ranges`, every member owns an equal share of keys.

        With a `cut`, which `Workspace.journals` returns, the Shuffle reads those journals up to
        the heads in the cut, and nothing that came later: see `drain`.
        """
        tiles = _tiles(members, ranges)
        service = service or ServiceSettings()
        settings = settings or ShuffleSettings()
        base, replayed = last_commit or Checkpoint(), read_through or Checkpoint()
        known = {**base.bindings, **replayed.bindings}
        collections = {each.name: each for each in workspace.collections()}
        self._sources = resolve(bindings, collections, known)
        self.session = secrets.token_hex(16)
        owners = tuple(MemberAt(*each) for each in zip(members, tiles, strict=True))
        reach = workspace.reach()
        openings = [
            messages.OpenSlice(self.session, member, owners, self._sources.all, reach, settings)
            for member in range(len(members))
        ]
        self._members = tuple(members)
        self._releases: list[Future[None]] = []
        """What the members answer to the last release."""
        self._journals = {**base.journals, **replayed.journals}
        self._asking = threading.Lock()
        self._answer: Future[NextCheckpoint | None] | None = None
        self._silence_s = service.silence_s
        self._is_cut = cut is not None
        with ExitStack() as stack:
            clients, slices = open_slices(openings, service, stack)
            self._consumers = open_consumers(clients, self.session, self._sources, settings.open_s)
            horizon = int(settings.horizon_s * TICKS_PER_SECOND) << COUNTER_BITS
            state = SessionState(
                self._sources,
                tiles,
                base,
                read_through,
                horizon,
                is_cut=self._is_cut,
                is_limited=settings.report_documents is not None,
                pending_max=settings.pending_max,
                kept_back_bytes_max=settings.queue_soft_bytes // _KEPT_BACK_SHARE,
            )
            self._actor = SessionActor(state, slices, self._watch(workspace, cut))
            stack.callback(self._actor.close)
            self._announce(workspace, members, stack)
            self._running = stack.pop_all()

    def _watch(self, workspace: Workspace, cut: Sequence[JournalInfo] | None) -> Watch:
        """Watch the journals that bindings read, or the cut, which must have all of them."""
        if cut is None:
            return workspace.watch(*(source.selector for source in self._sources.all))
        check_cut(cut, _journals_of(workspace, self._sources), self._sources)
        return CutWatch(cut)

    @property
    def members(self) -> int:
        return len(self._consumers)

    def next_checkpoint(
        self,
        timeout_s: float | None = None,
        *,
        documents_max: int | None = None,
        may_be_empty: bool = False,
    ) -> NextCheckpoint | None:
        """Return the next checkpoint, or None: no document became visible in time, or the cut ends.

        `documents_max` is soft: a checkpoint has whole reports of Slices, and at least one. So
        limit the reports too, with `ShuffleSettings.report_documents`.

        With `may_be_empty`, progress that shows no document, such as a rollback, is a checkpoint
        too. Otherwise it is part of the next checkpoint that shows one. A program that stores
        checkpoints should ask for empty ones now and then: retention may remove what follows a
        checkpoint that is too old.
        """
        if not self._asking.acquire(blocking=False):
            raise UsageError(
                "another thread waits for a checkpoint", do="ask for checkpoints in one thread"
            )
        try:
            # A call that was interrupted has left its answer here.
            if self._answer is None:
                self._answer = self._actor.poll(documents_max, may_be_empty=may_be_empty)
            found = self._result(self._answer, timeout_s)
            # If an interruption loses a checkpoint from here on, its number is missing, and members
            # refuse to read the next one.
            self._answer = None
        finally:
            self._asking.release()
        if found is not None:
            self._journals |= found.delta.journals
        return found

    def _result(
        self, answer: Future[NextCheckpoint | None], timeout_s: float | None
    ) -> NextCheckpoint | None:
        try:
            return answer.result(timeout_s)
        except FutureTimeoutError:
            self._actor.give_up(answer)
            return answer.result()

    def drain(self) -> Iterator[NextCheckpoint]:
        """Yield the checkpoints that are left of a cut.

        All checkpoints of a cut together show what was committed there.
        """
        if not self._is_cut:
            raise UsageError("a Shuffle without a cut never ends", do="open it with a cut")
        while (checkpoint := self.next_checkpoint()) is not None:
            yield checkpoint

    def read(
        self, member: int, checkpoint: NextCheckpoint, *, ordered: bool = False
    ) -> Iterator[tuple[Source, pa.RecordBatch]]:
        """Yield the documents that a checkpoint shows on one member, with `_clock` and `_pair`.

        If `ordered`, they are sorted by priority, then by clock plus read delay, across bindings.
        """
        consumer = self._consumers[member]
        with self._explained():
            yield from consumer.read(checkpoint.number, checkpoint.delta.encode(), ordered=ordered)

    def shares(self, checkpoint: NextCheckpoint, *, names: bool = False) -> list[Share]:
        """Return the share of every member in the checkpoint; any process may read a share.

        With `names`, shares have the names of the journals. Repeating this changes nothing.
        """
        delta = checkpoint.delta.encode()
        with self._explained():
            told = [consumer.advance(checkpoint.number, delta) for consumer in self._consumers]
            for consumer, answer in zip(self._consumers, told, strict=True):
                answer.result()
                consumer.note_known(checkpoint.number)
            self._check_releases()
        journals = self._names(checkpoint.delta) if names else {}
        return [
            Share(address, self.session, checkpoint.number, self._sources.all, journals)
            for address in self._members
        ]

    def _names(self, delta: Checkpoint) -> dict[int, str]:
        """Return, by tag, the names of the journals that have documents in the delta."""
        rows = delta.frontier.producers
        tags = np.unique(rows["place"][rows["last_commit"] > 0] >> np.uint64(TAG_BITS)).tolist()
        return {tag: self._journals[tag].name for tag in tags}

    def release(self, checkpoint: NextCheckpoint) -> None:
        """Free the checkpoint and those before it: nobody will read them again.

        Members free it before they do what they are asked later, but nobody waits for them. If
        that fails, a later call raises the error.
        """
        with self._explained():
            self._check_releases()
            self._releases = [consumer.release(checkpoint.number) for consumer in self._consumers]
            if checkpoint.number > min(consumer.known for consumer in self._consumers):
                # A member refuses what it was not told of.
                self._check_releases()
        for tag in checkpoint.delta.gone:
            self._journals.pop(tag, None)

    def _check_releases(self) -> None:
        """Wait until the members have carried out the last release."""
        answers, self._releases = self._releases, []
        for answer in answers:
            answer.result()

    def _announce(self, workspace: Workspace, members: Sequence[str], stack: ExitStack) -> None:
        if workspace.directory:
            names = [source.name for source in self._sources.all]
            announced = Announcement(
                workspace.directory, self.session, names, list(members), self.status
            )
            stack.callback(announced.close)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise what ended the Session rather than the error of a member that lost its Queue."""
        try:
            yield
        except (NotFoundError, TransportError) as error:
            raise (self._actor.cause(self._silence_s) or error) from error

    def status(self) -> SessionStatus:
        """Return the status of the Session and its members."""
        return self._actor.status().result()

    def close(self) -> None:
        self._running.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()


def _journals_of(workspace: Workspace, sources: Sources) -> list[JournalInfo]:
    """Return the journals of the collections that bindings read, as they are now."""
    collections = sorted({source.collection for source in sources.all})
    return [each for name in collections for each in workspace.journals(Selector(name))]


def _tiles(members: Sequence[str], ranges: Sequence[Range] | None) -> list[Range]:
    """Return the range of every member. Raises UsageError if they do not cover all keys once."""
    check_addresses(members)
    if not members:
        raise UsageError("a Session needs members", do="name at least one")
    if len(set(members)) < len(members):
        raise UsageError("a member is named twice", do="name every member once")
    count = len(members)
    tiles = list(ranges or split_evenly(count))
    if len(tiles) != count:
        raise UsageError(
            f"every member needs one range, got {len(tiles)} for {count}",
            do="give as many ranges as members",
        )
    check_tiling(tiles)
    return tiles

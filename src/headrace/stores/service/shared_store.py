"""A store that any number of processes use at once.

The first process that opens the directory has the store open and serves it; the others work through
that process. When it is gone, the next call of any process opens the store there, or finds the
process that did.

- `take`, `apply`, `apply_parts`, `stat` and reads are repeated with the next owner: repeated, they
  change nothing.
- A `write` whose answer was lost raises InDoubtError. So does a `flush` of writes that the lost
  owner had not flushed. Repeating such writes does no harm if nobody else writes the same series or
  ids: they store the same values again.
- A `scan` that has begun ends with PeerLostError: the next owner cannot show the same snapshot.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec
import pyarrow as pa

from headrace.decoders import convert
from headrace.errors import InDoubtError, PeerLostError, UsageError
from headrace.files import storage_errors
from headrace.journal.location.workspace_ref import is_address
from headrace.settings import ServiceSettings
from headrace.stores.checkpoint_record import StoreCheckpoint
from headrace.stores.contract import Store
from headrace.stores.service.remote_store import RemoteStore
from headrace.stores.service.store_directory import StoreDirectory, StoreSettings
from headrace.stores.service.store_kinds import StoreKinds, find_kind
from headrace.stores.service.store_service import StoreOwner
from headrace.transport.owned_directory import OwnerAddress

T = TypeVar("T")

OWNERS_LOST_MAX = 8
"""A call gives up when it has lost this many owners, one after the other."""


@dataclass(frozen=True)
class _Attachment:
    """The owner that this process works with, or is."""

    owner: StoreOwner | None
    remote: RemoteStore | None
    base: int
    """Epochs that this process gives out are those of the owner, and this much more."""

    @property
    def store(self) -> Store:
        store = self.owner.store if self.owner else self.remote
        assert store
        return store

    @property
    def tasks(self) -> StoreOwner | RemoteStore:
        """What stages and applies the parts of tasks."""
        tasks = self.owner or self.remote
        assert tasks
        return tasks


@dataclass
class _LostWrites:
    """Writes that an owner had not flushed when it was lost: low < epoch ≤ high."""

    low: int
    high: int
    untold: set[int]
    """Threads that wrote some of them, and were not told yet."""
    is_told: bool = False
    """True if any thread was told, such as one that flushes what others write."""


class SharedStore(Store):
    """A store that is open in this process or through the process that has it open."""

    def __init__(
        self,
        location: str | Path,
        service: ServiceSettings,
        kinds: StoreKinds,
        *,
        may_own: bool = True,
        identity: str = "",
    ) -> None:
        """Attach to the store at `location`, a directory or the address of its owner.

        With `may_own` False this process never becomes the owner.
        """
        self._service = service
        self._kinds = kinds
        self._may_own = may_own
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._closing = False
        self._last_epoch = 0
        self._flushed = 0
        self._writers: dict[int, int] = {}
        """The last epoch that each thread wrote, unless it is flushed."""
        self._lost: list[_LostWrites] = []
        self._directory: StoreDirectory | None = None
        self._address = ""
        if is_store_address(location):
            self._address = str(location)
        else:
            self._directory = StoreDirectory(Path(location).absolute())
            find_kind(kinds, self._directory.identity.kind, self._directory.root)
        self._id = self._directory.identity.id if self._directory else identity
        self._attachment = self._attach()

    # What it is

    @property
    def place(self) -> str:
        """The directory of the store, or the address that it was opened by."""
        return str(self._directory.root) if self._directory else self._address

    @property
    def identity(self) -> str:
        """The random id that tells this store from every other."""
        remote = self._attachment.remote
        return self._id or (remote.description.id if remote else "")

    @property
    def directory(self) -> StoreDirectory | None:
        """The directory; None if the store is known by an address."""
        return self._directory

    @property
    def owner(self) -> StoreOwner | None:
        """What this process runs if it has the store open; None if another process has."""
        return self._attachment.owner

    @property
    def kind(self) -> str:
        return self._attachment.store.kind

    @property
    def schema(self) -> pa.Schema:
        return self._attachment.store.schema

    @property
    def settings(self) -> StoreSettings:
        if self._directory:
            return self._directory.identity.settings
        assert self._attachment.remote
        return convert(self._attachment.remote.description.settings, StoreSettings)

    def reach(self) -> OwnerAddress:
        """Return the address of the present owner, after making sure that there is one."""
        self._call(lambda attached: attached.store.stat())
        owner = self._directory.owner() if self._directory else None
        return owner or OwnerAddress(self._address, self._service.token, 0)

    # What a store does

    def write(self, rows: pa.RecordBatch) -> int:
        attachment, taken = self._call(lambda attached: (attached, attached.store.write(rows)))
        epoch = attachment.base + taken
        with self._lock:
            if attachment is not self._attachment:
                raise InDoubtError(
                    f"the owner of {self.place} ended after it took rows",
                    do="write them again: the same rows are stored once",
                )
            self._last_epoch = max(self._last_epoch, epoch)
            self._writers[threading.get_ident()] = epoch
        return epoch

    def flush(self, epoch: int | None = None) -> None:
        through = self._last_epoch if epoch is None else epoch

        def flush_through(attached: _Attachment) -> None:
            # Another thread that attaches to the next owner counts lost writes as flushed.
            with self._lock:
                self._check_not_lost(epoch)
                is_flushed = through <= self._flushed
            if epoch is None:
                attached.store.flush()
            elif not is_flushed:
                attached.store.flush(through - attached.base)

        self._call(flush_through)
        with self._lock:
            self._flushed = max(self._flushed, through)
            self._writers = {
                thread: last for thread, last in self._writers.items() if last > self._flushed
            }

    def raise_failure(self) -> None:
        """Raise the error that every later write gets too, if a write of the owner has failed."""
        # No write has the epoch 0, so this waits for nothing.
        self._call(lambda attached: attached.store.flush(0))

    def generation(self, task: str) -> str:
        return self._call(lambda attached: attached.store.generation(task))

    def take(self, task: str, generation: str, instead_of: str | None = None) -> int:
        return self._call(lambda attached: attached.tasks.take(task, generation, instead_of))

    def apply(self, rows: pa.RecordBatch, checkpoint: StoreCheckpoint) -> bool:
        return self._call(lambda attached: attached.store.apply(rows, checkpoint))

    def stage(self, rows: Iterable[pa.RecordBatch], checkpoint: StoreCheckpoint) -> str:
        """Bring rows of a checkpoint to the disk of the store, and return the id of this part.

        Readers do not see them until `apply_parts`. Any process may stage. Raises PeerLostError if
        the owner is lost meanwhile, for the rows may exist only once: stage them again.
        """
        attachment = self._current()
        return attachment.tasks.stage(rows, checkpoint)

    def apply_parts(self, parts: Sequence[str], checkpoint: StoreCheckpoint) -> bool:
        """Store the rows of all these parts and the checkpoint in one atomic write.

        Returns False, and changes nothing, if the store holds the checkpoint already.
        """
        named = list(parts)
        return self._call(lambda attached: attached.tasks.apply_parts(named, checkpoint))

    def scan(self, **selection: Any) -> Iterator[pa.RecordBatch]:
        def begin(attached: _Attachment) -> tuple[pa.RecordBatch | None, Iterator[pa.RecordBatch]]:
            batches = attached.store.scan(**selection)
            return next(batches, None), batches

        first, rest = self._call(begin)
        if first is not None:
            yield first
            yield from rest

    def stat(self) -> dict[str, int | float | str]:
        return self._call(lambda attached: attached.store.stat())

    def ask(self, request: msgspec.Struct) -> Any:
        """Return the answer to a request of this kind of store: see `store_kinds`."""
        return self._call(lambda attached: attached.tasks.ask(request))

    def change(self, request: msgspec.Struct) -> Any:
        """Like `ask`, for a request that changes the store. Raises InDoubtError as `write` does."""
        return self._call(lambda attached: attached.tasks.change(request))

    def close(self) -> None:
        # A thread that holds the lock while it looks for the next owner sees this and gives up.
        self._closing = True
        with self._lock:
            attachment = self._attachment
            if attachment.remote:
                attachment.remote.close()
            elif attachment.owner:
                try:
                    attachment.owner.close()
                finally:
                    assert self._directory
                    self._directory.unlock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # Owners come and go

    def _current(self) -> _Attachment:
        if os.getpid() != self._process:
            raise UsageError(
                "this store was opened before the process forked", do="open it again here"
            )
        if self._closing:
            raise UsageError(f"the store at {self.place} is closed", do="open it again")
        attachment = self._attachment
        if attachment.remote and attachment.remote.is_lost:
            return self._reattach(attachment)
        return attachment

    def _call(self, use: Callable[[_Attachment], T]) -> T:
        """Run `use`; repeat it with the next owner if the present one is lost."""
        attachment = self._current()
        for _ in range(OWNERS_LOST_MAX):
            try:
                return use(attachment)
            except PeerLostError:
                attachment = self._reattach(attachment)
        return use(attachment)

    def _reattach(self, lost: _Attachment) -> _Attachment:
        with self._lock:
            if self._attachment is lost and not self._closing:
                _remote(lost).give_up()
                if self._last_epoch > self._flushed:
                    untold = set(self._writers)
                    self._lost.append(_LostWrites(self._flushed, self._last_epoch, untold))
                self._writers = {}
                self._flushed = self._last_epoch
                self._attachment = self._attach()
            return self._current()

    def _check_not_lost(self, epoch: int | None) -> None:
        """Raise InDoubtError if a flush of `epoch` would cover writes that an owner lost.

        A flush of later writes, or of everything, tells it once, and once to each thread that
        wrote some of them.
        """
        thread = threading.get_ident()
        with self._lock:
            for lost in self._lost:
                is_later = epoch is None or epoch > lost.high
                is_lost = epoch is not None and lost.low < epoch <= lost.high
                is_news = not lost.is_told or thread in lost.untold
                if is_lost or (is_later and is_news):
                    lost.is_told = True
                    lost.untold.discard(thread)
                    raise InDoubtError(
                        f"the owner of {self.place} ended before it flushed writes up to epoch"
                        f" {lost.high}",
                        do="write them again: the same rows are stored once",
                    )

    def _attach(self) -> _Attachment:
        base = self._last_epoch
        if self._directory is None:
            return _Attachment(None, RemoteStore(self._address, self._id, self._service), base)
        directory = self._directory
        return directory.attach(
            (lambda: _Attachment(self._become_owner(directory), None, base))
            if self._may_own
            else None,
            lambda owner: _Attachment(None, self._work_through(owner), base),
            patience_s=self._service.silence_s,
            is_closing=lambda: self._closing,
        )

    def _become_owner(self, directory: StoreDirectory) -> StoreOwner:
        kind = find_kind(self._kinds, directory.identity.kind, directory.root)
        try:
            with storage_errors(f"{directory.root}", do="mend the directory or choose another"):
                return StoreOwner(directory, kind, self._service)
        except BaseException:
            directory.unlock()
            raise

    def _work_through(self, owner: OwnerAddress) -> RemoteStore:
        service = msgspec.structs.replace(self._service, token=owner.token)
        return RemoteStore(owner.address, self._id, service)


def is_store_address(location: str | Path) -> bool:
    return isinstance(location, str) and is_address(location)


def _remote(attachment: _Attachment) -> RemoteStore:
    assert attachment.remote
    return attachment.remote

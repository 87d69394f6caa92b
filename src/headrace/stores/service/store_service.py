"""Serves an open store to other processes."""

from __future__ import annotations

import os
import secrets
from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count
from typing import Any

import msgspec
import pyarrow as pa

from headrace.errors import UsageError
from headrace.settings import ServiceSettings
from headrace.stores.checkpoint_record import StoreCheckpoint
from headrace.stores.service import messages
from headrace.stores.service.arrow_bodies import decode_rows, encode_rows, split_rows
from headrace.stores.service.messages import StoreCall, StoreDescription
from headrace.stores.service.staged_parts import PartStaging, StagedPart
from headrace.stores.service.store_directory import StoreDirectory
from headrace.stores.service.store_kinds import StoreKind
from headrace.stores.task_checkpoints import TaskLocks
from headrace.transport import Channel, Conversation, Message, RequestService, Server
from headrace.transport.owned_directory import OwnerAddress

_WAITING_CALLS_MAX = 64


class StoreOwner:
    """Everything that the process runs that has a store open. It has the lock of the directory."""

    def __init__(
        self, directory: StoreDirectory, kind: StoreKind, service: ServiceSettings
    ) -> None:
        token = service.token or secrets.token_urlsafe(32)
        identity = directory.identity
        self.kind = kind
        self._locks = TaskLocks()
        with ExitStack() as undo:
            self.store = kind.open(directory.data, identity.settings)
            undo.callback(self.store.close)
            self.staging = PartStaging(directory.staged, self.store.schema)
            description = StoreDescription(
                identity.id,
                kind.name,
                msgspec.to_builtins(identity.settings),
                self.store.schema.serialize().to_pybytes(),
            )
            served = StoreService(self, description)
            undo.callback(served.close)
            names = (messages.service_of(identity.id), messages.service_of(""))
            settings = msgspec.structs.replace(service, token=token)
            server = Server(dict.fromkeys(names, served), settings)
            undo.callback(server.close)
            self.address = server.address
            undo.callback(directory.withdraw)
            directory.announce(OwnerAddress(self.address, token, os.getpid()))
            self._running = undo.pop_all()

    def take(self, task: str, generation: str, instead_of: str | None = None) -> int:
        with self._locks.of(task):
            last = self.store.take(task, generation, instead_of)
            self.staging.forget(task)
            return last

    def stage(self, rows: Iterable[pa.RecordBatch], checkpoint: StoreCheckpoint) -> str:
        part = self.staging.begin(checkpoint)
        try:
            for each in rows:
                part.add(each)
            return part.end()
        except BaseException:
            part.drop()
            raise

    def apply_parts(self, parts: list[str], checkpoint: StoreCheckpoint) -> bool:
        task, generation, number = checkpoint.task, checkpoint.generation, checkpoint.number
        # A call whose answer was lost may still be at work when it is repeated.
        with self._locks.of(task):
            # A task that took the store before keeps it, and one that lost it is refused.
            if self.staging.was_applied(checkpoint) and self.store.take(task, generation) >= number:
                return False
            rows = self.staging.read(parts, checkpoint)
            if not self.store.apply(rows, checkpoint):
                # What is staged now belongs to a later checkpoint, or goes with the next one.
                return False
            self.staging.mark_applied(checkpoint)
            return True

    def ask(self, request: msgspec.Struct) -> Any:
        return self.kind.answer(self.store, request)

    def change(self, request: msgspec.Struct) -> Any:
        return self.ask(request)

    def close(self) -> None:
        self._running.close()


class StoreService(RequestService):
    """`transport.Service` over a `StoreOwner`.

    Calls that may wait for the disk or compute long run in threads of their own.
    """

    requests = messages.requests

    def __init__(self, owner: StoreOwner, description: StoreDescription) -> None:
        super().__init__()
        self._owner = owner
        self._description = description
        self._threads = ThreadPoolExecutor(_WAITING_CALLS_MAX, "headrace-store")
        self._numbers = count(1)
        self._parts: dict[Conversation, dict[int, StagedPart]] = {}

    def carry_out(self, call: StoreCall, bodies: tuple[Any, ...], caller: Conversation) -> Any:
        store = self._owner.store
        submit = self._threads.submit
        match call:
            case messages.DescribeStore():
                return self._description
            case messages.WriteRows():
                return store.write(decode_rows(bodies[0]))
            case messages.FlushWrites(epoch):
                return submit(store.flush, epoch)
            case messages.AskGeneration(task):
                return submit(store.generation, task)
            case messages.TakeTask(task, generation, instead_of):
                return submit(self._owner.take, task, generation, instead_of)
            case messages.ApplyRows(checkpoint):
                return submit(store.apply, decode_rows(bodies[0]), checkpoint)
            case messages.ApplyParts(parts, checkpoint):
                return submit(self._owner.apply_parts, parts, checkpoint)
            case messages.AskStoreStat():
                return submit(store.stat)
            case messages.AskStore(request, given):
                return submit(self._owner.ask, self._owner.kind.decode(request, given))
        return self._carry_out_part(call, bodies, caller)

    def _carry_out_part(
        self, call: StoreCall, bodies: tuple[Any, ...], caller: Conversation
    ) -> Any:
        parts = self._parts.setdefault(caller, {})
        match call:
            case messages.BeginPart(checkpoint):
                number = next(self._numbers)
                parts[number] = self._owner.staging.begin(checkpoint)
                return number
            case messages.AddToPart(number) if number in parts:
                return parts[number].add(decode_rows(bodies[0]))
            case messages.EndPart(number) if number in parts:
                return parts.pop(number).end()
            case messages.DropPart(number):
                if part := parts.pop(number, None):
                    part.drop()
                return None
        raise UsageError(
            f"a store was asked for {type(call).__name__}, which it cannot do now",
            do="run the same version of Headrace in all processes",
        )

    def end(self, caller: Conversation) -> None:
        for part in self._parts.pop(caller, {}).values():
            part.drop()

    def stream(self, request: Any, channel: Channel[Any]) -> Generator[Message[Any], None, None]:
        _, call = request
        if not isinstance(call, messages.ScanRows):
            raise UsageError(f"{type(call).__name__} is not a stream", do="converse")
        for batch in self._owner.store.scan(**call.selection):
            for piece in split_rows(batch):
                yield Message(messages.ScannedRows(), (encode_rows(piece),))

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)

"""A store that another process has open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from headrace.decoders import convert
from headrace.errors import InDoubtError, PeerLostError
from headrace.settings import ServiceSettings
from headrace.stores.checkpoint_record import StoreCheckpoint
from headrace.stores.contract import Store
from headrace.stores.service import messages
from headrace.stores.service.arrow_bodies import CHUNK_BYTES, decode_rows, encode_rows, split_rows
from headrace.stores.service.messages import StoreCall, StoreDescription
from headrace.transport import RequestClient


class RemoteStore(Store):
    """One conversation with the process that has the store open. Any thread may use it.

    When that process is gone, calls raise PeerLostError. A write whose answer was lost raises
    InDoubtError, because nobody knows whether the store took its rows.
    """

    def __init__(self, address: str, store_id: str, service: ServiceSettings) -> None:
        """Connect. With an id, only the store of that id will do."""
        self.address = address
        self._client = RequestClient(address, messages.service_of(store_id), service)
        self._client.connect()
        try:
            answer = self._call(messages.DescribeStore())
            self.description = convert(answer, StoreDescription)
            self._schema = pa.ipc.read_schema(pa.py_buffer(self.description.schema))
        except BaseException:
            self._client.close()
            raise

    @property
    def is_lost(self) -> bool:
        """True if the other process is gone."""
        return self._client.is_lost

    @property
    def kind(self) -> str:
        return self.description.kind

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def write(self, rows: pa.RecordBatch) -> int:
        return int(self._call_once(messages.WriteRows(), (encode_rows(rows),)))

    def flush(self, epoch: int | None = None) -> None:
        self._call(messages.FlushWrites(epoch))

    def generation(self, task: str) -> str:
        return str(self._call(messages.AskGeneration(task)))

    def take(self, task: str, generation: str, instead_of: str | None = None) -> int:
        return int(self._call(messages.TakeTask(task, generation, instead_of)))

    def apply(self, rows: pa.RecordBatch, checkpoint: StoreCheckpoint) -> bool:
        if rows.nbytes <= CHUNK_BYTES:
            return bool(self._call(messages.ApplyRows(checkpoint), (encode_rows(rows),)))
        return self.apply_parts([self.stage([rows], checkpoint)], checkpoint)

    def stage(self, rows: Iterable[pa.RecordBatch], checkpoint: StoreCheckpoint) -> str:
        """Bring rows of a checkpoint to the disk of the store, and return the id of this part."""
        part = self._call(messages.BeginPart(checkpoint))
        try:
            for batch in rows:
                for piece in split_rows(batch):
                    self._call(messages.AddToPart(part), (encode_rows(piece),))
            return str(self._call(messages.EndPart(part)))
        except BaseException:
            if not self.is_lost:
                self._call(messages.DropPart(part))
            raise

    def apply_parts(self, parts: Sequence[str], checkpoint: StoreCheckpoint) -> bool:
        """Store the rows of all these parts and the checkpoint in one atomic write."""
        return bool(self._call(messages.ApplyParts(list(parts), checkpoint)))

    def scan(self, **selection: Any) -> Iterator[pa.RecordBatch]:
        with self._client.stream(messages.ScanRows(selection), messages.scanned) as stream:
            for message in stream:
                yield decode_rows(message.bodies[0])

    def stat(self) -> dict[str, int | float | str]:
        return dict(self._call(messages.AskStoreStat()))

    def ask(self, request: msgspec.Struct) -> Any:
        return self._call(_as_call(request))

    def change(self, request: msgspec.Struct) -> Any:
        """Ask for a change, which must not be asked for twice."""
        return self._call_once(_as_call(request))

    def close(self) -> None:
        self._client.close()

    def give_up(self) -> None:
        """Close, because the other process is gone: calls raise PeerLostError afterwards."""
        self._client.give_up()

    def _call(self, call: StoreCall, bodies: Iterable[Any] = ()) -> Any:
        return self._client.submit(call, bodies).result()

    def _call_once(self, call: StoreCall, bodies: Iterable[Any] = ()) -> Any:
        answer = self._client.submit(call, bodies)
        try:
            return answer.result()
        except PeerLostError as error:
            raise InDoubtError(
                f"the process at {self.address} is gone, and nobody knows whether it took a change",
                do="look into the store, or make the change again if a repetition does no harm",
            ) from error


def _as_call(request: msgspec.Struct) -> messages.AskStore:
    return messages.AskStore(type(request).__name__, msgspec.Raw(msgspec.msgpack.encode(request)))

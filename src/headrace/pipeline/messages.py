"""The message that stands for a unit in a topic: a reference to rows, never the rows. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.errors import DataError

ONLY = "only"
"""Names, in the metadata of a message that is replayed, the group of the input that it is for."""
UNIT = "unit"
"""Holds, in the metadata of a message without a payload, the unit of a source that it is about."""
REPLAY_OF = "replay_of"
"""Names, in the metadata of a message that is replayed, the unit that its rows are from."""


class Origin(msgspec.Struct, frozen=True, array_like=True):
    """Where a message of a memory topic comes from: the nearest durable topic upstream."""

    topic: str
    partition: int
    offset: int
    """The offset to commit there once the message is processed."""


class QueueMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """One unit, as it travels from a stage to the next."""

    split_id: str
    """The unit's id. It means the same rows after every restart."""
    data_ref: str
    """The key of the payload. It is empty if there are no rows, or if `metadata` has a unit."""
    rows: int
    """The number of rows; -1 if nobody has read them yet."""
    metadata: dict[str, Any] = {}
    origin: Origin | None = None
    """None in a durable topic."""

    @property
    def may_have_rows(self) -> bool:
        """True if the message refers to rows, as far as is known before they are read."""
        return bool(self.data_ref) or UNIT in self.metadata


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(QueueMessage)


def encode_message(message: QueueMessage) -> bytes:
    return _encoder.encode(message)


def decode_message(value: bytes) -> QueueMessage:
    try:
        return _decoder.decode(value)
    except msgspec.MsgspecError as error:
        raise DataError(
            f"a message of {len(value)} bytes is no reference to a unit: {error}",
            do="let nothing but a pipeline write to the topics of a pipeline",
        ) from error

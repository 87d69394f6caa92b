"""Fills the topics of sources: every planned unit is in its topic exactly once.

The list of units is stored first, with put-if-absent, so every attempt to fill the topic has the
same. Units go to the topic in parts. The commit of a part moves an offset of a group that is named
after the part: whoever comes second is refused, whether it is a later run or a driver that was
given up.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace.errors import DataError, FencedError, NotFoundError
from headrace.pipeline.messages import UNIT, QueueMessage, encode_message
from headrace.pipeline.run.payloads import Payloads
from headrace.pipeline.source.source_units import TableUnit, Unit, encode_unit, unit_id, unit_rows
from headrace.pipeline.source.sources import UnitSource
from headrace.queues.contract import OffsetCommit, Output, QueueBackend
from headrace.storage import Objects

PART_UNITS = 1000

_units: msgspec.msgpack.Decoder[list[Unit]] = msgspec.msgpack.Decoder(list[Unit])


class UnitLists:
    """The stored lists of units of one job."""

    def __init__(self, objects: Objects, prefix: str) -> None:
        self._objects = objects
        self._prefix = prefix

    def _key(self, stage: str, plan: int) -> str:
        return f"{self._prefix}/units/{stage}/{plan:020d}"

    def store(self, stage: str, plan: int, units: Sequence[Unit]) -> list[Unit]:
        """Store a list unless there is one, and return the one that counts."""
        key = self._key(stage, plan)
        if self._objects.put_if_absent(key, msgspec.msgpack.encode(units)):
            return list(units)
        return self.load(stage, plan)

    def load(self, stage: str, plan: int) -> list[Unit]:
        key = self._key(stage, plan)
        try:
            return _units.decode(self._objects.get(key))
        except (msgspec.MsgspecError, NotFoundError) as error:
            raise DataError(
                f"the list of units {key} cannot be read: {error}", do="restore it from a backup"
            ) from error

    def load_all(self, stage: str, plans: Sequence[int]) -> list[Unit]:
        """Return the units of all plans. A driver may have died before it stored the last list."""
        return [
            unit
            for plan in plans
            if self.exists(stage, plan) or self.is_filled(stage, plan)
            for unit in self.load(stage, plan)
        ]

    def exists(self, stage: str, plan: int) -> bool:
        return self._objects.head(self._key(stage, plan)) is not None

    def is_filled(self, stage: str, plan: int) -> bool:
        return self._objects.head(f"{self._key(stage, plan)}.filled") is not None

    def mark_filled(self, stage: str, plan: int) -> None:
        self._objects.put(f"{self._key(stage, plan)}.filled", b"")


def plan_units(
    source: UnitSource, lists: UnitLists, payloads: Payloads, stage: str, plans: Sequence[int]
) -> dict[int, list[Unit]]:
    """Return the units of every plan that may not be in the topic. A new one is stored first.

    Units that are in the topic are not read again: a resume does not depend on how many there are.
    """
    found: dict[int, list[Unit]] = {}
    for number, plan in enumerate(plans):
        if lists.is_filled(stage, plan):
            continue
        if lists.exists(stage, plan):
            found[plan] = lists.load(stage, plan)
        elif not number:
            found[plan] = lists.store(stage, plan, source.plan(payloads, stage))
        else:
            planned = [unit for before in plans[:number] for unit in lists.load(stage, before)]
            found[plan] = lists.store(stage, plan, source.change(planned).added)
    return found


async def fill_topic(
    backend: QueueBackend, topic: str, partitions: int, plan: int, units: Sequence[Unit]
) -> None:
    """Put the units of a plan into the topic, but for the parts that are there."""
    for part, first in enumerate(range(0, len(units), PART_UNITS)):
        outputs = [
            Output(topic, encode_message(_message(unit)), None, (first + n) % partitions)
            for n, unit in enumerate(units[first : first + PART_UNITS])
        ]
        flag = OffsetCommit(f"plan.{plan}.{part}", topic, 0, None)
        try:
            await backend.produce_and_commit(outputs, flag)
        except FencedError:
            continue


def _message(unit: Unit) -> QueueMessage:
    if isinstance(unit, TableUnit):
        return QueueMessage(unit_id(unit), unit.ref, unit.rows)
    return QueueMessage(unit_id(unit), "", unit_rows(unit), {UNIT: encode_unit(unit)})

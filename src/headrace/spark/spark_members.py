"""Members of a Session in the tasks of a barrier stage, for as long as a block runs.

The stage is a result stage. Spark never starts a result stage again by itself, which would put a
second generation of members beside the first. Spark notices members that die. It does not notice
members that stop, nor those whose executor lost the driver. So each member holds a conversation
with the driver, and a silence ends both sides. A member that lost the driver ends its process at
once, because Spark uses workers again, and such a worker must not keep a Flight server. A member
also ends its process when its parent, Spark's daemon for workers, is gone: nothing else would end
it.
"""

from __future__ import annotations

import os
import secrets
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec
from pyspark import BarrierTaskContext
from pyspark.sql import SparkSession

from headrace.errors import REPORT, HeadraceError, PeerLostError, UsageError
from headrace.settings import ServiceSettings
from headrace.shuffle import Member
from headrace.spark.gateway_log import silence_thread
from headrace.spark.query_failure import explain_in, is_crash
from headrace.spark.slots import slots_for_members
from headrace.spark.worker_process import bound_to_parent, check_version
from headrace.transport import Channel, Client, Server
from headrace.version import VERSION

_HOST = "spark-members"
_START_S = 120.0
_WORD_S = 2.0
_END_S = 5.0
"""Spark ends members that do not end within this time after the driver let them go."""


class Joined(msgspec.Struct, frozen=True, tag="joined"):
    """A member says that it runs."""

    shard: int
    address: str
    process: int
    """The id of its process, on its machine."""


_joined = msgspec.msgpack.Decoder(Joined)


class _HostOptions(NamedTuple):
    """What a task needs to know to host a member."""

    driver: str
    service: ServiceSettings
    is_local: bool
    directory: str
    """The directory of the Queues if the machine's environment names none."""
    version: str = VERSION


class SparkMembers:
    """Runs members: `with SparkMembers(spark, 2) as members:` has their addresses and processes."""

    def __init__(self, spark: SparkSession, count: int) -> None:
        token = secrets.token_urlsafe(32)
        self._spark = spark
        self._context = context = spark.sparkContext
        self._group = f"headrace-members-{secrets.token_hex(8)}"
        is_local = str(context.master).startswith("local")
        host = "127.0.0.1" if is_local else context.getConf().get("spark.driver.host", "127.0.0.1")
        self.service = ServiceSettings(host=host, token=token)
        self._hosting = _Hosting(count)
        self._failure: BaseException | None = None
        with ExitStack() as stack:
            stack.enter_context(slots_for_members(spark, count))
            server = Server({_HOST: self._hosting}, self.service)
            stack.callback(server.close)
            directory = context.getConf().get("spark.local.dir") or tempfile.gettempdir()
            options = _HostOptions(server.address, self.service, is_local, directory)
            self._thread = threading.Thread(
                target=self._run, args=(spark, count, options), name="headrace-members", daemon=True
            )
            self._thread.start()
            stack.callback(self._end)
            joined = self._hosting.wait(_START_S, self._cause)
            self.addresses = [each.address for each in joined]
            self.processes = tuple(each.process for each in joined)
            self._running = stack.pop_all()

    def _run(self, spark: SparkSession, count: int, options: _HostOptions) -> None:
        # It may outlive the run: Py4J would print what `failure` tells.
        silence_thread()
        context = spark.sparkContext
        context.setJobGroup(self._group, f"{count} Headrace members", interruptOnCancel=True)
        try:
            context.parallelize(range(count), count).barrier().mapPartitions(
                lambda _: host(options)
            ).collect()
        except Exception as error:  # noqa: BLE001  raised where somebody waits for members
            self._failure = error
        self._hosting.ended()

    def _cause(self) -> str:
        if self._failure is None:
            return ""
        cause = explain_in(self._spark, self._failure)
        return cause.what if isinstance(cause, HeadraceError) else str(cause)

    @property
    def is_alive(self) -> bool:
        """True while all members run."""
        return not self._hosting.has_ended

    def wait_for_end(self, timeout_s: float) -> bool:
        """Wait, and return True if members have ended by themselves within the time."""
        return self._hosting.wait_for_end(timeout_s)

    def failure(self) -> HeadraceError:
        """Return why the members are not alive: what Spark says, or which of them ended first."""
        # Spark may be about to report the reason.
        self._thread.join(_WORD_S)
        cause = explain_in(self._spark, self._failure) if self._failure else None
        if (lost := self._hosting.first_lost) and (cause is None or is_crash(cause)):
            member, was_silent = lost
            how = "is silent" if was_silent else "was killed or crashed"
            what = f"member {member.shard} {how} (process {member.process})"
            return PeerLostError(what, do="run the query again")
        return PeerLostError(
            f"members ended: {self._cause() or 'one of them left'}", do="run the query again"
        )

    def _end(self) -> None:
        self._hosting.close()
        self._thread.join(_END_S)
        if self._thread.is_alive():
            self._context.cancelJobGroup(self._group)
            self._thread.join(_END_S)

    def close(self) -> None:
        self._running.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _Hosting:
    """The driver's side of the conversations."""

    requests = _joined

    def __init__(self, count: int) -> None:
        self._count = count
        self._changed = threading.Condition()
        self._joined: dict[int, Joined] = {}
        self._has_ended = False
        self._closing = threading.Event()
        self.first_lost: tuple[Joined, bool] | None = None
        """The member whose conversation ended first, and True if it was silent."""

    @property
    def has_ended(self) -> bool:
        return self._closing.is_set()

    def converse(self, channel: Channel[Any]) -> None:
        first = channel.receive()
        if first is None:
            return
        with self._changed:
            self._joined[first.control.shard] = first.control
            self._changed.notify_all()
        channel.on_end(lambda: self._lost(first.control, channel))
        self._closing.wait()

    def _lost(self, member: Joined, channel: Channel[Any]) -> None:
        with self._changed:
            if not self._closing.is_set():
                self.first_lost = member, _was_silent(channel)
            self._closing.set()

    def stream(self, request: Any, channel: Channel[Any]) -> Any:
        raise UsageError("the driver was asked to stream to a member", do=REPORT)

    def wait(self, timeout_s: float, cause: Any) -> list[Joined]:
        with self._changed:
            self._changed.wait_for(
                lambda: len(self._joined) == self._count or self._has_ended, timeout_s
            )
            if len(self._joined) < self._count:
                why = cause() or "the others did not answer"
                raise PeerLostError(
                    f"{len(self._joined)} of {self._count} members started: {why}",
                    do="read the log of the Spark application",
                )
            return [self._joined[shard] for shard in range(self._count)]

    def wait_for_end(self, timeout_s: float) -> bool:
        return self._closing.wait(timeout_s)

    def ended(self) -> None:
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()
        self._closing.set()

    def close(self) -> None:
        self._closing.set()


def _was_silent(channel: Channel[Any]) -> bool:
    """Return True if the conversation ended because the other side was silent, not gone."""
    try:
        channel.receive(0)
    except (HeadraceError, TimeoutError) as error:
        return "was silent" in str(error)
    return False


def host(options: _HostOptions) -> Iterator[str]:
    """Host one member in a task. Returns when the driver lets the member go."""
    check_version(options.version)
    task = BarrierTaskContext.get()
    shard = task.partitionId()
    address = task.getTaskInfos()[shard].address
    name = "127.0.0.1" if options.is_local else address.rpartition(":")[0]
    service = msgspec.structs.replace(options.service, host=name, port=0)
    root = Path(os.environ.get("SPARK_LOCAL_DIRS", options.directory).split(",")[0])
    with (
        bound_to_parent(),
        Member(root, service) as member,
        Client(options.driver, service) as client,
    ):
        task.allGather(member.address)
        channel = client.converse(_HOST, _joined)
        try:
            channel.send(Joined(shard, member.address, os.getpid()))
            channel.receive()
        except HeadraceError:
            os._exit(1)
    return iter(())

"""Where the running Sessions of a workspace can be asked how they stand.

A Session on a workspace directory serves its status on loopback, and says where in
`sessions/<session>.json`, which its user alone may read, since it holds the token. What the file
says is believed only if somebody answers there for that Session: one that was killed leaves its
file behind, and whoever looks removes it. The Session holds a lock on the file, which ends with its
process, however that ends: so one that was killed is told from one that does not answer.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec

from headrace.errors import (
    HeadraceError,
    NotFoundError,
    ProtocolError,
    StorageError,
    TransportError,
)
from headrace.files import lock, make_directory, write_durably
from headrace.settings import ServiceSettings
from headrace.shuffle.session.status import SessionStatus
from headrace.transport import Channel, Client, Message, Server

STATUS = "shuffle-status"
_DIRECTORY = "sessions"


class AskSession(msgspec.Struct, frozen=True, tag="ask-session"):
    """How does it stand?"""

    session: str


class RunningSession(msgspec.Struct, frozen=True):
    """A Session that answered, or that lives and does not."""

    session: str
    process: int
    bindings: list[str]
    addresses: list[str]
    """Of its members."""
    status: SessionStatus | None
    failure: str = ""
    """What ended it, if it failed and is not closed yet."""
    unreachable: str = ""
    """Why it did not answer: then no more is known of it than its process."""


class _Announced(msgspec.Struct, frozen=True):
    """What the file holds."""

    address: str
    token: str
    process: int


_answers = msgspec.msgpack.Decoder(RunningSession)


class Announcement:
    """Serves the status of one Session, and says where, until closed."""

    def __init__(
        self,
        workspace: Path,
        session: str,
        bindings: list[str],
        addresses: list[str],
        status: Callable[[], SessionStatus],
    ) -> None:
        def running() -> RunningSession:
            about = (session, os.getpid(), bindings, addresses)
            try:
                return RunningSession(*about, status())
            except HeadraceError as error:
                return RunningSession(*about, None, str(error))

        service = ServiceSettings(token=secrets.token_urlsafe(32))
        path = _path(workspace, session)
        with ExitStack() as stack:
            server = Server({STATUS: _StatusService(session, running)}, service)
            stack.callback(server.close)
            try:
                make_directory(path.parent)
                announced = _Announced(server.address, service.token, os.getpid())
                stack.callback(path.unlink, missing_ok=True)
                write_durably(path, msgspec.json.encode(announced))
                # It waits only for those who look at this moment.
                stack.callback(os.close, lock(path, fcntl.LOCK_EX))
            except OSError as error:
                raise StorageError(
                    f"{path}: {error.strerror or error}",
                    do="let this user write to the workspace's directory",
                ) from error
            self._running = stack.pop_all()

    def close(self) -> None:
        self._running.close()


def running_sessions(workspace: Path) -> Iterator[RunningSession]:
    """Those that live; the files of those that are gone are removed."""
    for path in sorted((workspace / _DIRECTORY).glob("*.json")):
        with suppress(FileNotFoundError):
            try:
                announced = msgspec.json.decode(path.read_bytes(), type=_Announced)
            except msgspec.DecodeError:
                path.unlink()
                continue
            try:
                yield _ask(announced, path.stem)
            except (TransportError, NotFoundError) as error:
                if not _is_locked(path):
                    path.unlink()
                    continue
                yield RunningSession(
                    path.stem, announced.process, [], [], None, unreachable=error.what
                )


def _ask(announced: _Announced, session: str) -> RunningSession:
    settings = ServiceSettings(token=announced.token)
    with (
        Client(announced.address, settings) as client,
        client.stream(STATUS, AskSession(session), _answers) as stream,
    ):
        for message in stream:
            return message.control
    raise NotFoundError(f"Session {session} did not answer", do="see whether it still runs")


def _path(workspace: Path, session: str) -> Path:
    return workspace / _DIRECTORY / f"{session}.json"


def _is_locked(path: Path) -> bool:
    try:
        # Shared: others who look do not count.
        os.close(lock(path, fcntl.LOCK_SH | fcntl.LOCK_NB))
    except BlockingIOError:
        return True
    return False


class _StatusService:
    requests = msgspec.msgpack.Decoder(AskSession)

    def __init__(self, session: str, running: Callable[[], RunningSession]) -> None:
        self._session = session
        self._running = running

    def converse(self, channel: Channel[Any]) -> None:
        raise ProtocolError("a status is a stream", do="ask for it")

    def stream(self, request: Any, channel: Channel[Any]) -> Generator[Message[Any], None, None]:
        if request.session != self._session:
            raise NotFoundError(f"no Session {request.session} here", do="ask elsewhere")
        yield Message(self._running())

"""The registry of the running Sessions of a workspace, which answer with their status.

A Session on a workspace directory serves its status on loopback, and writes the address to
`sessions/<session>.json`. Only its user may read that file, since it has the token. A Session that
was killed leaves its file behind, so a reader believes a file only if the Session answers at that
address. The Session holds a lock on the file until its process ends, in whatever way: a reader
removes a file that nobody has locked, and reports a Session that lives and does not answer.
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

from headrace.decoders import decode_json
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
    """Asks a Session for its status."""

    session: str


class RunningSession(msgspec.Struct, frozen=True):
    """A Session that answered, or one that lives and did not answer."""

    session: str
    process: int
    bindings: list[str]
    addresses: list[str]
    """The addresses of its members."""
    status: SessionStatus | None
    failure: str = ""
    """What ended the Session, if it failed and its program has not closed it yet."""
    unreachable: str = ""
    """Why the Session did not answer; then only its process is known."""


class _Announced(msgspec.Struct, frozen=True):
    """The content of the file."""

    address: str
    token: str
    process: int


_answers = msgspec.msgpack.Decoder(RunningSession)


class Announcement:
    """Registers one Session and serves its status, until closed."""

    def __init__(
        self,
        workspace: Path,
        session: str,
        bindings: list[str],
        addresses: list[str],
        status: Callable[[], SessionStatus],
    ) -> None:
        def running() -> RunningSession:
            identity = (session, os.getpid(), bindings, addresses)
            try:
                return RunningSession(*identity, status())
            except HeadraceError as error:
                return RunningSession(*identity, None, str(error))

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
                # This waits at most for readers that test the lock at this moment.
                stack.callback(os.close, lock(path, fcntl.LOCK_EX))
            except OSError as error:
                raise StorageError(
                    f"cannot register the Session in {path}: {error.strerror or error}",
                    do="let this user write to the workspace's directory",
                ) from error
            self._running = stack.pop_all()

    def close(self) -> None:
        self._running.close()


def running_sessions(workspace: Path) -> Iterator[RunningSession]:
    """Yield the Sessions that live, and remove the files of those that do not."""
    for path in sorted((workspace / _DIRECTORY).glob("*.json")):
        with suppress(FileNotFoundError):
            try:
                announced = decode_json(path.read_bytes(), _Announced)
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
    raise NotFoundError(f"Session {session} did not answer", do="check that its process still runs")


def _path(workspace: Path, session: str) -> Path:
    return workspace / _DIRECTORY / f"{session}.json"


def _is_locked(path: Path) -> bool:
    try:
        # A shared lock, so that readers do not take each other for the Session.
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
        raise ProtocolError("a status has no conversation", do="ask for the status as a stream")

    def stream(self, request: Any, channel: Channel[Any]) -> Generator[Message[Any], None, None]:
        if request.session != self._session:
            raise NotFoundError(
                f"Session {request.session} does not run at this address",
                do="read its address again",
            )
        yield Message(self._running())

"""An owner that stops itself at a step of a commit, as SIGSTOP would."""

from __future__ import annotations

import signal
import threading
from typing import Any, Literal, get_args
from unittest import mock

from headrace.journal.local.owner import Owner
from headrace.journal.local.state import OwnerState
from headrace.journal.wire import journal_service
from headrace.log import Log, disk
from headrace.transport import Channel

Step = Literal["taken", "decided", "queued", "written", "synced", "shown", "answering", "answered"]
STEPS: tuple[Step, ...] = get_args(Step)
"""The steps of a write in their order. The owner stops before or after one: see `_patch`."""


class StoppingOwner:
    """Stops the process of the owner at a step of the next write."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._step: Step | None = None
        self._patch()

    def arm(self, step: Step) -> None:
        """Stop at that step of the next write."""
        with self._lock:
            self._step = step

    def _reach(self, step: Step) -> None:
        with self._lock:
            if self._step != step:
                return
            self._step = None
        # Signal this thread, which is at the step; the others stop with it.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

    def _patch(self) -> None:
        self._around(OwnerState, "write", before="taken", after="decided")
        self._around(Owner, "_append", after="queued")
        self._around(disk._File, "sync", before="written")
        self._around(Log, "_report", before="synced")
        self._around(Owner, "_show", after="shown")
        self._around(journal_service, "_written", before="answering")
        self._around(Channel, "send", after="answered")

    def _around(
        self, where: Any, name: str, *, before: Step | None = None, after: Step | None = None
    ) -> None:
        original = getattr(where, name)

        def call(*given: Any, **named: Any) -> Any:
            if before:
                self._reach(before)
            # A call that began earlier does not belong to the next write.
            is_armed = after is not None and self._step == after
            answer = original(*given, **named)
            if after and is_armed:
                self._reach(after)
            return answer

        mock.patch.object(where, name, call).start()

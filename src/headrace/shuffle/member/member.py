"""A member: one Flight service that hosts Slices and Queues of Sessions."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Self

from headrace.settings import LogSettings, ServiceSettings
from headrace.shuffle import messages
from headrace.shuffle.member.queue_directory import own_folder
from headrace.shuffle.queue.handler import ConsumerService, Queues, QueueService, ReaderService
from headrace.shuffle.slice.handler import SliceService
from headrace.transport import Server


class Member:
    """Listens from construction on, until it is closed.

    Its queue files lie in a folder of its own below `root`, which it removes at the end. If it is
    killed, the next member below `root` removes that folder.
    """

    def __init__(
        self, root: Path, service: ServiceSettings | None = None, log: LogSettings | None = None
    ) -> None:
        settings = service or ServiceSettings()
        with ExitStack() as stack:
            folder = stack.enter_context(own_folder(root))
            queues = Queues(folder, log or LogSettings())
            stack.callback(queues.close)
            server = Server(
                {
                    messages.SLICE: SliceService(settings, queues),
                    messages.QUEUE: QueueService(queues),
                    messages.CONSUMER: ConsumerService(queues),
                    messages.READER: ReaderService(queues),
                },
                settings,
            )
            stack.callback(server.close)
            self.address = server.address
            self._server = server
            self._running = stack.pop_all()

    @property
    def streams(self) -> int:
        """The number of streams that it serves to Sessions and to Slices of other members.

        For each Session, that is one to its Slice, and one to its Queue from every other Slice.
        """
        kinds = (messages.SLICE, messages.QUEUE)
        return sum(self._server.conversations_of(kind) for kind in kinds)

    def close(self) -> None:
        self._running.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

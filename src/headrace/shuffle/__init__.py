"""Coordinated, disk-backed reads of many journals by M members, with one checkpoint for all.

The order that makes it safe: **route → write → sync → report → publish → read.** A Slice reports
progress only when every Queue has synced what it was sent; the Session publishes a transaction only
when every Slice that reads a part of it has reported; a reader shows only what was published.

Each level is a folder of three: `state` decides and is pure, `actor` runs it in one thread,
`handler` opens it. A member hosts a Slice and a Queue; the Session lives where the consumer is.

- `session/`: who reads what, which transactions are complete, what the next checkpoint is.
- `slice/`: which journals to read on, in what order, what to send to which Queue and to report.
- `queue/`: what to write next, when to acknowledge, when to let Slices send more.

A consumer that hands its checkpoints on by number keeps them in a `History`.
"""

from headrace.shuffle.binding import Binding
from headrace.shuffle.checkpoint import Checkpoint, NextCheckpoint
from headrace.shuffle.checkpoints.checkpoint_history import (
    History,
    TaskInfo,
    describe_task,
    list_checkpoints,
    list_tasks,
    reset_task,
)
from headrace.shuffle.member.local_members import LocalMembers
from headrace.shuffle.member.member import Member
from headrace.shuffle.routing import Range
from headrace.shuffle.session_client import Shuffle
from headrace.shuffle.shuffle_follower import follow

__all__ = [
    "Binding",
    "Checkpoint",
    "History",
    "LocalMembers",
    "Member",
    "NextCheckpoint",
    "Range",
    "Shuffle",
    "TaskInfo",
    "describe_task",
    "follow",
    "list_checkpoints",
    "list_tasks",
    "reset_task",
]

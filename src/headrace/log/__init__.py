"""One segmented, checksummed, append-only log for everything durable and ordered.

The order that makes it safe: **write → sync → report**. The log reports a frame, and so
acknowledges it and makes it visible, only after the sync that covers it. It makes a segment's name
durable before the segment's first frame, and unlinks a segment only after the marker that says so
is durable.

When a log opens, damage below the `synced_through` of a later group raises a `DataError` that names
the file and the offset. Anything else after the last whole frame is a torn tail, and the log cuts
it. Two kinds of loss stay unnoticed: damage inside the very last group looks like a torn tail,
unless a seal follows it (in a log that has seals, a clean close and an idle moment write one); and
the log does not miss its oldest or newest file unless a marker speaks of it.
"""

from headrace.log.disk import AppendFile, Directory, Disk
from headrace.log.file_reader import LogFiles
from headrace.log.log import Log
from headrace.log.segments import Extent, Segment
from headrace.log.sync_group import OnSynced

__all__ = ["AppendFile", "Directory", "Disk", "Extent", "Log", "LogFiles", "OnSynced", "Segment"]

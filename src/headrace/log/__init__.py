"""One segmented, checksummed, append-only log for everything durable and ordered.

The order that makes it safe, said once: **write → sync → report**. A frame is reported, and so
acknowledged and visible, only after the sync that covers it; a segment's name is durable before
its first frame; a segment is unlinked only after the marker that says so is durable.

On opening, damage below a later group's `synced_through` is a `DataError` naming file and
offset. Anything else after the last whole frame is a torn tail and is cut. The limit: damage
inside the very last group cannot be told from a tear, unless a seal follows it; a clean close
and an idle moment write one. Nor can it be told that the oldest or the newest file is missing,
unless a marker of something given up says so.
"""

from headrace.log.disk import AppendFile, Directory, Disk
from headrace.log.file_reader import LogFiles
from headrace.log.log import Log
from headrace.log.segments import Extent, Segment

__all__ = ["AppendFile", "Directory", "Disk", "Extent", "Log", "LogFiles", "Segment"]

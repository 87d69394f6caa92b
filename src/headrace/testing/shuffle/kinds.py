"""The kinds of history that the simulator must contain, so that a run can show that it did."""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    """Each is counted when it happens, not when it is merely possible."""

    LAGGING_HEAD = "the watch told a head below the journal's end"
    LATE_JOURNAL = "the watch told of a journal only after it was written to"
    LATE_FETCH = "a fetch of what the watch had told was answered later than others"
    REPEATED_ANSWER = "a fetch was answered twice"
    NAME_USED_AGAIN = "a journal was made under the name of a deleted one"
    SELECTOR = "a selector left out a committed document"
    CLOCK_WINDOW = "a clock window left out a committed document"
    SEVERAL_DELAYS = "a Session had several read delays in one priority"
    BINDING_ADDED = "a restart added a binding"
    BINDING_REMOVED = "a restart removed a binding"
    BINDING_BACK = "a restart brought a removed binding back"
    BINDING_MOVED = "a restart moved a binding to another cohort"
    SELECTOR_CHANGED = "a restart changed a selector"
    REPEATED_FRAME = "a journal has a frame of documents twice"
    REPEATED_ACK = "a journal has an ACK twice"
    OVERLAPPING_FRAME = "a frame has documents of the one before it, and more"
    LOSER = "a commit rolled back participants that lost"
    LOST_EARLY = "a participant was lost before its transaction ended"
    CLEAN_ROLLBACK = "an ACK rolled back by repeating the producer's last commit"
    SILENT_COORDINATOR = "a coordinator committed and had written nothing"
    NO_CREDIT = "a Slice had documents to send and no credit"
    HELD = "the Session told Slices to hold"
    AHEAD = "journals that were ahead waited, since many transactions were pending"
    SOFT_LIMIT = "a Queue reached its soft limit"
    STARVING = "a consumer starved above the soft limit"
    MOVED_BLOCKS = "a Queue moved open blocks to its end"
    HARD_LIMIT = "a Queue reached its hard limit, which ended the Session"
    FINISHED = "a Slice finished a cut"
    STOPPED = "a Slice told a Queue that it stopped reads"
    READ_AGAIN = "a checkpoint was read twice"
    LATE_RELEASE = "a checkpoint was released after a later one was made"
    REPLAY = "a restart replayed a checkpoint"
    REPLAY_CHANGED = "a restart replayed a checkpoint under other bindings"
    DELETED = "a journal was deleted"

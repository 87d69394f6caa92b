"""Settings are frozen data. Components get them as constructor arguments."""

from __future__ import annotations

import msgspec

KIB = 1024
MIB = 1024 * KIB


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The segmented log."""

    segment_bytes: int = 64 * MIB
    """A segment that has reached this size is followed by a new one."""
    group_bytes_max: int = 8 * MIB
    """One write and one sync cover at most about this much."""
    pending_bytes_max: int = 64 * MIB
    """Appenders wait while this much is not yet synced."""
    sync: bool = True
    """Without, what was appended survives the process but not a power failure."""
    idle_seal_s: float = 0.05
    """After this long without an append a seal is written: see `log`."""


class JournalSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Journals and publishers."""

    document_bytes_max: int = 16 * MIB
    """A larger document is refused."""
    frame_bytes_target: int = 1 * MIB
    """A publisher sends what it buffered for a journal when it has reached this size."""
    transaction_buffer_bytes: int = 4 * MIB
    """A transaction up to this size travels as one message, with its commit."""
    rewrite_below: float = 0.5
    """A segment whose live share is smaller is rewritten."""
    keeper_interval_s: float = 5.0
    """How often retention, rewriting and index snapshots are considered."""


class ShuffleSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Sessions: what each member may use."""

    queue_soft_bytes: int = 2048 * MIB
    """With this much on disk that is needed a Queue takes no more, as long as there is something to
    consume."""
    queue_hard_bytes: int = 4096 * MIB
    """With more the Session fails: an open transaction does not fit. Half of this always does."""
    sync: bool = True
    """Whether Flushed means synced. Without, a member that loses power loses the Session."""
    credit_bytes: int = 4 * MIB
    """Of one lane: sent by a Slice to a Queue and not yet written there. Less if there are so many
    members that all of it might not fit between the limits of the Queue."""
    fetch_bytes: int = 1 * MIB
    """Asked for at once of one journal."""
    ahead_bytes: int = 32 * MIB
    """Of one lane: fetched by a Slice and not yet taken."""
    report_documents: int | None = None
    """For those who limit their checkpoints, which have whole reports: with so many committed a
    Slice reports before it takes more, and it waits while many reports do."""
    pending_max: int = 65_536
    """While more transactions wait for ACKs in other journals, only those journals are read. With
    four times as many the Session fails."""
    open_s: float = 60.0
    """Members that live but have not all opened after this long end the Session: their Queues
    have half of it."""
    patience_s: float = 1.0
    """How long documents wait for a journal that may have earlier ones but does not answer."""
    horizon_s: float = 48 * 3600.0
    """A hint is given up when the documents read since are this much later."""


class ServiceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a process serves others, and reaches them."""

    host: str = "127.0.0.1"
    port: int = 0
    """Zero takes a free one."""
    token: str = ""
    """Callers must present it. A workspace on a local disk makes its own."""
    tls_certificate: str = ""
    """Paths of PEM files: with a certificate and its key the service speaks TLS only."""
    tls_key: str = ""
    tls_root: str = ""
    """Path of the PEM certificate that a client trusts."""
    heartbeat_s: float = 1.0
    """Both sides of an idle conversation speak this often."""
    silence_s: float = 10.0
    """A peer that was silent for this long counts as lost, and so do the leases it held."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a workspace can be told when it is opened."""

    log: LogSettings = LogSettings()
    journal: JournalSettings = JournalSettings()
    shuffle: ShuffleSettings = ShuffleSettings()
    service: ServiceSettings = ServiceSettings()

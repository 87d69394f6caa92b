"""Settings: frozen data that components get as constructor arguments."""

from __future__ import annotations

import msgspec

from headrace.errors import UsageError

KIB = 1024
MIB = 1024 * KIB


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The segmented log."""

    segment_bytes: int = 64 * MIB
    """The log begins a new segment when the newest has reached this size."""
    group_bytes_max: int = 8 * MIB
    """One write and one sync cover at most about this much."""
    pending_bytes_max: int = 64 * MIB
    """Appenders wait while more than this is not yet synced."""
    sync: bool = True
    """False if appends need to survive the end of the process only, not a power failure."""
    idle_seal_s: float | None = 0.05
    """The log writes a seal after this long without an append, and when it is closed: see `log`.
    None if it writes none, because nobody will open it again."""


class JournalSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Journals and publishers."""

    document_bytes_max: int = 16 * MIB
    """A publisher refuses larger documents."""
    frame_bytes_target: int = 1 * MIB
    """A publisher splits what it buffered for a journal into frames of about this size."""
    transaction_buffer_bytes: int = 4 * MIB
    """A transaction up to this size travels as one message, with its commit."""
    rewrite_below: float = 0.5
    """The owner rewrites a segment of which less than this share is still live."""
    keeper_interval_s: float = 5.0
    """How often the owner applies retention, rewrites segments and saves index snapshots."""


class ShuffleSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What each member of a Session may use."""

    queue_soft_bytes: int = 2048 * MIB
    """A Queue stops accepting blocks at this many live bytes, unless its consumer is starving."""
    queue_hard_bytes: int = 4096 * MIB
    """The Session fails when a Queue holds more live bytes: an open transaction does not fit. A
    transaction of half this size always fits."""
    sync: bool = True
    """True if a Queue syncs before it answers Flushed. If False, a member that loses power loses
    the Session."""
    credit_bytes: int = 4 * MIB
    """In each lane, a Slice may have sent this much to a Queue that has not written it yet. The
    credit is smaller if the members are so many that all of it might not fit between the limits of
    the Queue."""
    fetch_bytes: int = 4 * MIB
    """A Slice asks for this much of one journal at once."""
    ahead_bytes: int = 32 * MIB
    """In each lane, a Slice may have fetched this much that it has not sequenced yet."""
    report_documents: int | None = None
    """A Slice reports when it has this many committed documents, before it takes more, and waits
    while many reports are unread. A limit on checkpoints, which consist of reports, needs it."""
    pending_max: int = 65_536
    """While more transactions than this wait for ACKs in other journals, Slices read only those
    journals. At four times as many the Session fails."""
    open_s: float = 60.0
    """The Session fails if its members have not all opened after this long. A member's Queues must
    open within half of it."""
    patience_s: float = 1.0
    """Documents wait this long for a journal that may hold earlier ones but does not answer."""
    horizon_s: float = 48 * 3600.0
    """A Slice gives up a hint when it has read documents that are this much later."""


class ServiceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a process serves other processes, and calls them."""

    host: str = "127.0.0.1"
    port: int = 0
    """Zero takes a free port."""
    token: str = ""
    """Callers must present this token. The owner of a local directory makes one if it is empty."""
    tls_certificate: str = ""
    """Paths of PEM files. With a certificate and its key the service speaks only TLS."""
    tls_key: str = ""
    tls_root: str = ""
    """Path of the PEM certificate that a client trusts."""
    heartbeat_s: float = 1.0
    """Both sides of an idle conversation send a heartbeat this often."""
    silence_s: float = 10.0
    """A peer that is silent for this long counts as lost, and its leases end."""


class IngestSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The write coordinator of a store."""

    commands_max: int = 10_000
    """A write is refused, for now, if it would wait behind this many that are not merged yet."""
    pending_bytes_max: int = 64 * MIB
    """Writes are refused, for now, if more than this would be queued, merged, or not durable."""
    flush_bytes: int = 0
    """A flush begins when this much is merged. Zero means a quarter of `pending_bytes_max`."""
    flush_interval_s: float = 10.0
    """A flush begins when the oldest merged write has waited this long."""

    def __post_init__(self) -> None:
        for name in ("commands_max", "pending_bytes_max"):
            if getattr(self, name) < 1:
                raise UsageError(
                    f"{name} must be at least 1, got {getattr(self, name)}", do="choose another"
                )
        if not 0 <= self.flush_bytes <= self.pending_bytes_max:
            raise UsageError(
                f"flush_bytes must be from 0 to pending_bytes_max, which is "
                f"{self.pending_bytes_max}, got {self.flush_bytes}",
                do="choose another",
            )
        if not 0 < self.flush_interval_s < float("inf"):
            raise UsageError(
                f"flush_interval_s must be above 0 and finite, got {self.flush_interval_s}",
                do="choose another",
            )

    @property
    def flush_at_bytes(self) -> int:
        """The size of the merged writes that begins a flush."""
        return self.flush_bytes or max(1, self.pending_bytes_max // 4)


class VectorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One vector store."""

    list_rows: int = 256
    """A posting list that grows beyond twice this many vectors is split; one that shrinks below an
    eighth is merged into its neighbours."""
    split_neighbors: int = 4
    """A list is split together with this many of its nearest lists. More of them keep searches
    good where data come in order, and write more."""
    tail_rows_max: int = 8192
    """New vectors wait in a tail, which every search reads whole, until there are more than this
    many. Then they move to posting lists."""
    probe_rows: int = 16_384
    """An approximate search scores about this many vectors of the nearest posting lists."""
    exact_rows_max: int = 20_000
    """If this many vectors or fewer may be found, a search scores all of them."""
    garbage_rows_min: int = 16_384
    """Memory is compacted when more rows than this, and more than are in use, are garbage."""
    memory_bytes_max: int = 4096 * MIB
    """The store refuses rows that would need more memory than this."""
    k_max: int = 10_000
    """A search returns at most this many vectors."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            least = 1 if name in ("list_rows", "probe_rows", "k_max") else 0
            if getattr(self, name) < least:
                raise UsageError(
                    f"{name} must be at least {least}, got {getattr(self, name)}",
                    do="choose another",
                )


class TimeSeriesSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A time-series store."""

    retention_s: float | None = None
    """Samples that are older are removed, an hour at a time. None keeps all."""
    ahead_s: float = 24 * 3600.0
    """Samples whose time is further in the future are refused."""
    series_cached_max: int = 250_000
    """The ids, and the labels, of so many series are kept in memory."""
    chunk_cache_bytes: int = 64 * MIB
    """Samples that were read lately are kept in memory, up to this size."""

    def __post_init__(self) -> None:
        if self.retention_s is not None and not 0 < self.retention_s < float("inf"):
            raise UsageError(
                f"retention_s must be above 0 and finite, or None, got {self.retention_s}",
                do="choose another",
            )
        if not 0 <= self.ahead_s < float("inf"):
            raise UsageError(
                f"ahead_s must be finite and not negative, got {self.ahead_s}", do="choose another"
            )
        for name in ("series_cached_max", "chunk_cache_bytes"):
            if getattr(self, name) < 0:
                raise UsageError(
                    f"{name} must not be negative, got {getattr(self, name)}", do="choose another"
                )


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings that a workspace takes when it is opened."""

    log: LogSettings = LogSettings()
    journal: JournalSettings = JournalSettings()
    shuffle: ShuffleSettings = ShuffleSettings()
    service: ServiceSettings = ServiceSettings()

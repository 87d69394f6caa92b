"""The public API, written down: whoever changes it changes this file, and everybody sees it."""

from __future__ import annotations

import difflib
import inspect
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator

import msgspec
import pytest

import headrace
from headrace.errors import HeadraceError

WIDTH = 96

API = """\
class Answer
class Binding(*, collection: str, name: str = '', selector: headrace.journal.names.Selector |
        None = None, key: tuple[str, ...] | None = None, priority: int = 0, read_delay_s: float
        = 0.0, not_before: headrace.clock.Clock = 0, not_after: headrace.clock.Clock =
        18446744073709551615)
class Checkpoint
    merge(self, delta: Checkpoint) -> Checkpoint
    encode(self) -> bytes
class CheckpointId
class Collection
    version: int
    decode(self, body: Any, version: int) -> pa.RecordBatch
class CommitOutcome
class Cut
    close(self) -> None
class HeadraceError(what: str, *, do: str = '') -> None
class InDoubtError(what: str, *, do: str = '', ask: Callable[[float], CommitOutcome] | None =
        None) -> None
    outcome(self, timeout_s: float = 30.0) -> CommitOutcome
class Job
    add_stage(self, stage: Stage, upstream_stages: Sequence[str] = ()) -> Self
    upstreams(self, stage: str) -> tuple[str, ...]
    downstreams(self, stage: str) -> list[str]
    operators: list[Stage]
    sources: list[Stage]
    is_durable(self, stage: str) -> bool
    validate(self) -> None
    columns(self, *stages: str) -> pa.Schema | None
    phases(self) -> dict[str, int]
    fingerprint(self, stage: str) -> str
    layout(self, stage: str) -> str
class JournalSettings(*, document_bytes_max: int = 16777216, frame_bytes_target: int = 1048576,
        transaction_buffer_bytes: int = 4194304, rewrite_below: float = 0.5, keeper_interval_s:
        float = 5.0)
class LocalMembers
    streams(self) -> int
    close(self) -> None
    __enter__(self) -> Self
class LogSettings(*, segment_bytes: int = 67108864, group_bytes_max: int = 8388608,
        pending_bytes_max: int = 67108864, sync: bool = True, idle_seal_s: float | None = 0.05)
class Member
    streams: int
    close(self) -> None
    __enter__(self) -> Self
class NextCheckpoint
class Operator
    setup(self) -> Any
    process(self, batch: pa.RecordBatch) -> Any
    close(self) -> Any
    expected_tokens(self, batch: pa.RecordBatch) -> int
class Participant
    append(self, collection: Collection | str, documents: Documents) -> int
    prepare(self) -> str
    abandon(self) -> None
    __enter__(self) -> Self
class PendingCommit
    id: str
    done(self) -> bool
    result(self) -> None
    offsets(self) -> list[tuple[JournalId, int, Offset]]
class Pipeline
    source(self, data: Any, *, rows_per_unit: int = 1000, name: str = 'source', version: str =
        '') -> Self
    map(self, function: Callable[..., Any], **options: Any) -> Self
    flat_map(self, function: Callable[..., Any], **options: Any) -> Self
    filter(self, function: Callable[..., Any], **options: Any) -> Self
    map_batches(self, operator: Any, **options: Any) -> Self
    http(self, operator: Any, **options: Any) -> Self
    spark(self, function: Callable[..., Any], *, rows_per_unit: int = 1000, name: str = '',
        version: str = '') -> Self
    group_by(self, *keys: str, partitions: int = 16, rows_per_unit: int = 1000, name: str =
        'group-by') -> GroupedPipeline
    distinct(self, *keys: str, partitions: int = 16, rows_per_unit: int = 1000, name: str =
        'distinct') -> Self
    join(self, other: Pipeline, on: str | Sequence[str], *, how: JoinKind = 'inner', partitions:
        int = 16, rows_per_unit: int = 1000, name: str = 'join') -> Self
    sink(self, sink: Any, *, name: str = 'sink', workers: int = 1, version: str = '') -> Self
    job: Job
    plan(self) -> JobPlan
    run(self, spark: Any = None, *, on_change: OnChange = 'refuse', runner: Runner | None =
        None, service: ServiceSettings | None = None, watch: Callable[[JobStatus], None] | None
        = None) -> RunSummary
    stop(self) -> None
    needs_spark: bool
    status(self) -> JobStatus
    dead_letters(self, stage: str = '') -> list[DeadLetter]
    replay_dead_letters(self, stage: str = '') -> int
    collect(self, stage: str = '') -> pa.Table
class Publisher
    payload: bytes
    is_lost(self) -> bool
    begin(self) -> Transaction
    close(self) -> None
    __enter__(self) -> Transaction
class Query
    schema: pa.Schema | None
    map(self, function: Callable[..., Any], *, schema: pa.Schema | None = None, version: str =
        '') -> Query
    filter(self, function: Callable[..., Any], *, version: str = '') -> Query
    select(self, *columns: str) -> Query
    group_by(self, *keys: str, partitions: int = 16) -> GroupedQuery
    distinct(self, *keys: str, partitions: int = 16) -> Query
    join(self, other: Query, on: str | Sequence[str], *, how: JoinKind = 'inner', partitions:
        int = 16) -> Query
    repartition(self, *keys: str, partitions: int = 16) -> Query
    sink(self, sink: Any, *, version: str = '') -> Query
    stages: StageGraph
    run(self, name: str, spark: Any = None, *, objects: str | PathLike[str] | Objects = '') ->
        PlanRun
class RateLimitSpec(*, name: str, requests_per_minute: float | None = None, tokens_per_minute:
        float | None = None, burst_s: float = 1.0)
class Retries
    begin(self) -> Attempts
class Selector(collection: str = '', include: dict[str, tuple[str, ...]] = <factory>, exclude:
        dict[str, tuple[str, ...]] = <factory>)
    matches(self, name: JournalName) -> bool
class ServiceSettings(*, host: str = '127.0.0.1', port: int = 0, token: str = '',
        tls_certificate: str = '', tls_key: str = '', tls_root: str = '', heartbeat_s: float =
        1.0, silence_s: float = 10.0)
class Settings(*, log: headrace.settings.LogSettings = LogSettings(segment_bytes=67108864,
        group_bytes_max=8388608, pending_bytes_max=67108864, sync=True, idle_seal_s=0.05),
        journal: headrace.settings.JournalSettings =
        JournalSettings(document_bytes_max=16777216, frame_bytes_target=1048576,
        transaction_buffer_bytes=4194304, rewrite_below=0.5, keeper_interval_s=5.0), shuffle:
        headrace.settings.ShuffleSettings = ShuffleSettings(queue_soft_bytes=2147483648,
        queue_hard_bytes=4294967296, sync=True, credit_bytes=4194304, fetch_bytes=4194304,
        ahead_bytes=33554432, report_documents=None, pending_max=65536, open_s=60.0,
        patience_s=1.0, horizon_s=172800.0), service: headrace.settings.ServiceSettings =
        ServiceSettings(host='127.0.0.1', port=0, token='', tls_certificate='', tls_key='',
        tls_root='', heartbeat_s=1.0, silence_s=10.0))
class SharedTimeSeries
    write(self, rows: RowsLike) -> int
    query(self, query: str, at: Moment = None) -> QueryResult
    query_range(self, query: str, start: int | datetime, end: Moment = None, step_s: float =
        15.0) -> MatrixResult
    series(self, matchers: Matchers = (), start: Moment = None, end: Moment = None) ->
        list[Labels]
    label_names(self, matchers: Matchers = (), start: Moment = None, end: Moment = None) ->
        list[str]
    label_values(self, name: str, matchers: Matchers = (), start: Moment = None, end: Moment =
        None) -> list[str]
    scan(self, **selection: Any) -> Iterator[pa.RecordBatch]
class SharedVectors
    write(self, rows: RowsLike) -> int
    upsert(self, ids: Sequence[str], vectors: VectorsLike, metadata: pa.RecordBatch |
        Mapping[str, Sequence[Any]] | None = None) -> int
    delete(self, ids: Sequence[str]) -> int
    get(self, ids: Sequence[str], columns: Sequence[str] | None = None) -> pa.RecordBatch
    search(self, vector: Sequence[float] | npt.NDArray[Any], k: int = 10, filter: FilterLike =
        None, *, exact: bool = False, columns: Sequence[str] | None = None) -> pa.RecordBatch
    search_many(self, vectors: VectorsLike, k: int = 10, filter: FilterLike = None, *, exact:
        bool = False, columns: Sequence[str] | None = None) -> list[pa.RecordBatch]
    scan(self, **selection: Any) -> Iterator[pa.RecordBatch]
class Shuffle
    members: int
    next_checkpoint(self, timeout_s: float | None = None, *, documents_max: int | None = None,
        may_be_empty: bool = False) -> NextCheckpoint | None
    drain(self) -> Iterator[NextCheckpoint]
    read(self, member: int, checkpoint: NextCheckpoint, *, ordered: bool = False) ->
        Iterator[tuple[Source, pa.RecordBatch]]
    shares(self, checkpoint: NextCheckpoint, *, names: bool = False) -> list[Share]
    release(self, checkpoint: NextCheckpoint) -> None
    status(self) -> SessionStatus
    close(self) -> None
    __enter__(self) -> Self
class ShuffleSettings(*, queue_soft_bytes: int = 2147483648, queue_hard_bytes: int = 4294967296,
        sync: bool = True, credit_bytes: int = 4194304, fetch_bytes: int = 4194304, ahead_bytes:
        int = 33554432, report_documents: int | None = None, pending_max: int = 65536, open_s:
        float = 60.0, patience_s: float = 1.0, horizon_s: float = 172800.0)
class Stage
    source: UnitSource | None
    takes_all: bool
    is_sink: bool
    shuffle: ShuffleOperator | None
    spec: StageOperator
class StageConfig(*, queue_backend: Literal['local', 'memory'] = 'local', batch_size: int = 100,
        fetch_timeout_ms: int = 1000, enable_persistence: bool = True, workers: int = 1,
        resources: dict[str, float] = <factory>)
    is_durable: bool
    check(self, stage: str) -> None
class Task
    run(self, spark: SparkSession, *, once: bool = False, restarts: int = 5, watch:
        Callable[[Progress], None] | None = None) -> None
    register(self) -> None
    about(self) -> TaskRecord
    stop(self) -> None
    reset(self) -> None
    is_stopping: bool
class Transaction
    append(self, collection: Collection | str, documents: Documents) -> int
    invite(self) -> str
    include(self, prepared: str) -> None
    commit(self, payload: bytes = b'') -> None
    commit_nowait(self, payload: bytes = b'') -> PendingCommit
    rollback(self) -> None
    is_open: bool
class Workspace
    collection(self, name: str, schema: str | pa.Schema | None = None, *, key: str |
        Sequence[str] = (), partition_by: str | Sequence[str] = (), journals: int = 1,
        retention_s: float | None = None, retention_bytes: int | None = None) -> Collection
    collections(self) -> list[Collection]
    delete_collection(self, name: str) -> None
    journals(self, selector: Selector | None = None) -> list[JournalInfo]
    journals_named(self, names: Sequence[str]) -> list[JournalInfo]
    delete_journals(self, names: Sequence[str]) -> None
    watch(self, *selectors: Selector) -> Watch
    publisher(self, name: str = '') -> Publisher
    payloads(self, prefix: str) -> dict[str, bytes]
    append(self, collection: Collection | str, documents: Documents) -> int
    outcome(self, id: str, timeout_s: float = 30.0) -> CommitOutcome
    join(self, invitation: str) -> Participant
    read(self, collection: Collection | str, *, selector: Selector | None = None, start:
        Mapping[str, int] | None = None, meta: bool = False) -> Iterator[pa.RecordBatch]
    follow(self, collection: Collection | str, *, selector: Selector | None = None, start:
        Mapping[str, int] | None = None, meta: bool = False, stop: threading.Event | None =
        None) -> Generator[pa.RecordBatch, None, None]
    table(self, collection: Collection | str, **options: Any) -> pa.Table
    frames(self, journal: JournalInfo, offset: int | None = None, *, committed: bool = True) ->
        Iterator[Frame]
    fetch(self, journal: JournalInfo, offset: int, bytes_max: int) -> Future[list[Frame]]
    kept_frames(self, journal: JournalInfo) -> Iterator[Frame]
    settings: Settings
    directory: Path | None
    reach(self) -> WorkspaceRef
    address: str | None
    objects: Objects
    trim(self, journal: JournalInfo, offset: int) -> None
    maintain(self) -> None
    close(self) -> None
    __enter__(self) -> Self
def create_store(location: str | Path, kind: str, *, dimension: int | None = None, metric: str =
        'cosine', metadata: Mapping[str, str] = {}, retention_s: float | None = None, backend:
        str = 'lmdb', objects: str = '') -> None
def current_call() -> CallContext
def derivation(workspace: Workspace, *, sources: Sequence[SourceLike], to: Collection | str,
        name: str = '', shards: int = 2, documents_max: int | None = None) ->
        Callable[[Function], Task]
module errors
def follow(workspace: Workspace, bindings: Sequence[Binding], members: int | Sequence[str] = 2,
        *, service: ServiceSettings | None = None, meta: bool = False, restarts: int = 9, stop:
        threading.Event | None = None, on_restart: OnRestart | None = None) ->
        Generator[pa.RecordBatch, None, None]
def foreach_batch(function: Function, *, exactly_once: bool = False) -> ForeachBatch
class http
    spec_defaults(self) -> dict[str, Any]
    setup(self) -> None
    close(self) -> None
    expected_tokens(self, batch: pa.RecordBatch) -> int
    process(self, batch: pa.RecordBatch) -> Answer
def jdbc(url: str, table: str, *, key: Sequence[str], user: str = '', password: str = '',
        driver: str = '', properties: Mapping[str, str] = {}) -> JdbcTable
def materialization(workspace: Workspace, *, sources: Sequence[SourceLike], sink: Sink, name:
        str = '', shards: int = 2, documents_max: int | None = None) -> Callable[[Function],
        Task]
def open(location: str | Path, *, token: str = '', settings: Settings | None = None, create:
        bool = True) -> Workspace
def open_timeseries(location: str | Path, service: ServiceSettings | None = None, *, token: str
        = '') -> SharedTimeSeries
def open_vectors(location: str | Path, service: ServiceSettings | None = None, *, token: str =
        '') -> SharedVectors
def openai_chat(prompt: Prompt, *, model: str, into: str = 'answer', system: str = '',
        usage_into: str = '', price: tuple[float, float] | None = None, base_url: str =
        'https://api.openai.com/v1', api_key_env: str = 'OPENAI_API_KEY', rate_limit:
        RateLimitSpec | None = None, timeout_s: float = 120.0, version: str = '', **parameters:
        Any) -> HttpOperator
def openai_embeddings(text: Prompt, *, model: str, into: str = 'embedding', price: float | None
        = None, rows_per_request: int = 64, base_url: str = 'https://api.openai.com/v1',
        api_key_env: str = 'OPENAI_API_KEY', rate_limit: RateLimitSpec | None = None, timeout_s:
        float = 60.0, version: str = '', **parameters: Any) -> HttpOperator
def operator(kind: Literal['map', 'flat_map', 'filter', 'map_batches'], target: Any, **options:
        Any) -> OperatorSpec
def parquet(location: str | PathLike[str], *, file_bytes: int = 134217728, **options:
        Unpack[S3Options]) -> ParquetFiles
def pipeline(name: str | Job, workspace: Workspace, *, budget: float | None = None) -> Pipeline
def scan(data: Any, workspace: Workspace, *, rows_per_unit: int = 100000) -> Query
def selector(collection: str = '', include: Mapping[str, Iterable[object]] | None = None,
        exclude: Mapping[str, Iterable[object]] | None = None) -> Selector
def source(data: Any, workspace: Workspace, *, rows_per_unit: int = 1000, version: str = '') ->
        UnitSource
module spark
def timeseries(store: str | PathLike[str], *, token: str = '') -> StoreSink
def vectors(store: str | PathLike[str], *, token: str = '') -> StoreSink
def writer(format: str, path: str | None = None, mode: Mode = 'append', **options: str) ->
        SparkWriter
"""


class _Bare(str):
    """An annotation as it is written, without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def described() -> list[str]:
    """Every public name with its signature. Only what users construct has a constructor."""
    lines = []
    for name in headrace.__all__:
        public = getattr(headrace, name)
        if inspect.isclass(public):
            constructed = issubclass(public, msgspec.Struct | HeadraceError)
            lines.append(f"class {name}{_signature(public) if constructed else ''}")
            lines += _members(public)
        elif callable(public):
            lines.append(f"def {name}{_signature(public)}")
        else:
            lines.append(f"module {name}")
    wrapped = [textwrap.wrap(line, WIDTH, subsequent_indent=" " * 8) for line in lines]
    return [line for several in wrapped for line in several]


def _members(public: type) -> Iterator[str]:
    for name, member in vars(public).items():
        if name.startswith("_") and name != "__enter__":
            continue
        if isinstance(member, property):
            yield f"    {name}: {inspect.signature(member.fget).return_annotation}"  # type: ignore[arg-type]
        elif inspect.isfunction(member):
            yield f"    {name}{_signature(member)}"


def _signature(public: Callable[..., object]) -> str:
    signature = inspect.signature(public)
    parameters = [
        each.replace(annotation=_bare(each.annotation)) for each in signature.parameters.values()
    ]
    returned = _bare(signature.return_annotation)
    return str(signature.replace(parameters=parameters, return_annotation=returned))


def _bare(annotation: object) -> object:
    return _Bare(annotation) if isinstance(annotation, str) else annotation


def test_the_public_api_is_what_is_written_here() -> None:
    written, found = API.splitlines(), described()
    difference = difflib.unified_diff(written, found, "written here", "headrace", lineterm="")
    assert found == written, "\n" + "\n".join(difference)


def test_the_names_are_sorted_and_each_is_there_once() -> None:
    assert headrace.__all__ == sorted(set(headrace.__all__))


def test_every_public_class_and_function_says_what_it_is() -> None:
    public = {name: getattr(headrace, name) for name in headrace.__all__}
    assert [name for name, each in public.items() if not inspect.getdoc(each)] == []


@pytest.mark.long
def test_dir_shows_the_public_api_and_nothing_else() -> None:
    """Also what is imported when it is asked for, which this process may not have done yet."""
    assert dir(headrace) == headrace.__all__
    assert dir(headrace.spark) == sorted(headrace.spark.__all__)
    seen = _run_python("import headrace; print(*dir(headrace))")
    assert seen.split() == headrace.__all__


@pytest.mark.long
def test_importing_headrace_imports_no_spark_and_nothing_that_only_pipelines_need() -> None:
    heavy = {"pyspark", "pandas", "httpx", "lmdb", "pyarrow.parquet", "headrace.pipeline.builder"}
    seen = _run_python(f"import headrace, sys; print(*(sys.modules.keys() & {heavy}))")
    assert seen.split() == []


@pytest.mark.long
def test_pipeline_is_the_function_after_its_package_is_imported() -> None:
    seen = _run_python(
        "import inspect; import headrace; import headrace.pipeline.builder; headrace.Pipeline;"
        " print(inspect.getdoc(headrace.pipeline))"
    )
    assert seen.strip() == (inspect.getdoc(headrace.pipeline) or "").strip()


def _run_python(program: str) -> str:
    """Return what a program prints in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return done.stdout

"""A table of a database as a sink, through JDBC: rows replace rows with their key, exactly once.

The order: **Spark's tasks write the rows to a staging table → one transaction moves the task's
checkpoint from n - 1 to n, deletes the rows that have the same keys, and inserts the staged rows →
the staging table is dropped.** If two processes do it at once, the second waits for the row of the
checkpoint, and then finds that the checkpoint has moved.

Spark may run a task twice, and both attempts write to the staging table. So every staged row has a
number that is unique in that table, and the database refuses the second attempt whole.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from typing import NamedTuple

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import monotonically_increasing_id
from pyspark.sql.types import StringType

from headrace.errors import (
    FencedError,
    HeadraceError,
    NotFoundError,
    SchemaError,
    StorageError,
    UsageError,
)
from headrace.journal.workspace import Workspace
from headrace.spark.sinks.contract import CheckpointId, is_due
from headrace.spark.sinks.jdbc_connection import CHARACTERS, Column, Connection
from headrace.spark.sinks.sink_generation import check_generation

CHECKPOINTS = "headrace_checkpoints"
"""The table that says which checkpoint a table holds. It is in the same schema."""

_SAME_ROW = "workspace = ? AND task = ? AND target_table = ?"
_ROW = "headrace_row"
_VARCHAR_MAX = 1_000_000
"""A database that reports a larger size has no limit, and accepts no such size."""
_TABLE = re.compile(r"""(?P<schema>.*\.)?(?:"[^"]+"|`[^`]+`|\[[^]]+]|[^."`\[\]]+)""")
_SECRETS = re.compile(r"(?<=//)[^/@]*@|(?<=:)[^@:/]+/[^@/]*@|[;?].*")


def jdbc(
    url: str,
    table: str,
    *,
    key: Sequence[str],
    user: str = "",
    password: str = "",
    driver: str = "",
    properties: Mapping[str, str] = {},
) -> JdbcTable:
    """Write to an existing table, in which a row replaces the row with its key, exactly once.

    A batch may have one row for each key. A column of the table that the rows lack gets its
    default. After a reset of the task the table keeps its rows until their keys come again.

    `driver` is the name of a class; name its jar in `spark.jars`. `properties` are those of the
    connection, or options of Spark's `jdbc` format, such as `batchsize`.
    """
    if isinstance(key, str) or not key or not all(isinstance(each, str) for each in key):
        raise UsageError(f"{key!r} is no key of table {table}", do="give a list of column names")
    if not isinstance(url, str) or not url.startswith("jdbc:"):
        raise UsageError(
            f"{_shown(str(url))!r} is no URL for JDBC",
            do="write it like jdbc:postgresql://host/name",
        )
    if not isinstance(table, str) or not _TABLE.fullmatch(table):
        raise UsageError(f"{table!r} cannot name a table", do="write table or schema.table")
    given = {"user": user, "password": password, "driver": driver}
    options = {name: str(value) for name, value in {**properties, **given}.items() if value}
    return JdbcTable({**options, "url": url, "dbtable": table}, tuple(key))


class JdbcTable:
    is_exactly_once = True

    def __init__(self, options: Mapping[str, str], key: tuple[str, ...]) -> None:
        self._options = options
        self._key = key

    def __str__(self) -> str:
        return f"table {self._options['dbtable']} in {_shown(self._options['url'])}"

    def open(self, spark: SparkSession, workspace: Workspace, task: CheckpointId) -> JdbcTarget:
        return JdbcTarget(spark, workspace, self._options, self._key, task)


class StagedTable(NamedTuple):
    """A staging table whose rows are written and not committed."""

    checkpoint: CheckpointId
    table: str
    columns: list[Column]
    """The columns of the target table that its columns go to."""
    key: list[int]
    """The positions of the key among `columns`."""


class JdbcTarget:
    def __init__(
        self,
        spark: SparkSession,
        workspace: Workspace,
        options: Mapping[str, str],
        key: tuple[str, ...],
        opened: CheckpointId,
    ) -> None:
        self._spark = spark
        self._workspace = workspace
        self._options = options
        self._key = key
        self._opened = opened
        self._table = options["dbtable"]
        self._location = _shown(options["url"])
        named = _TABLE.fullmatch(self._table)
        self._schema = (named and named["schema"]) or ""
        self._checkpoints = f"{self._schema}{CHECKPOINTS}"
        # Tasks of several workspaces may write to one schema, or to one table.
        self._row = (workspace.reach().identity, opened.task, self._table)
        self._staging = f"headrace_{sha256(repr(self._row).encode()).hexdigest()[:8]}_"
        self._connection = Connection(spark, self._location, options)
        try:
            self._columns = self._look()
            for name in key:
                self._column(name)
            self._take()
            self._sweep()
        except BaseException:
            self.close()
            raise

    def last(self) -> int:
        if not self._connection.is_alive:
            self._connection = Connection(self._spark, self._location, self._options)
        generation, last = self._stored() or (self._opened.generation, 0)
        if generation != self._opened.generation:
            raise FencedError(
                f"generation {generation} of task {self._opened.task!r} writes to table"
                f" {self._table} in {self._location}, and this run is of generation"
                f" {self._opened.generation}",
                do="end this run: another one has replaced it",
            )
        return last

    def write(self, rows: DataFrame, checkpoint: CheckpointId) -> None:
        if is_due(checkpoint, self._opened, self.last(), f"table {self._table}"):
            self.commit(self.stage(rows, checkpoint))

    def stage(self, rows: DataFrame, checkpoint: CheckpointId) -> StagedTable:
        """Write the rows to a staging table, which nobody reads."""
        columns = [self._column(name) for name in rows.columns]
        names = [each.name for each in columns]
        if len(set(names)) < len(names):
            raise SchemaError("the rows have two columns of one name", do="rename one of them")
        table = self._staging + secrets.token_hex(4)
        staged = StagedTable(checkpoint, self._schema + table, columns, self._key_numbers(names))
        renamed = rows.toDF(*(f"headrace_{n}" for n in range(len(columns))))
        placed = renamed.withColumn(_ROW, monotonically_increasing_id())
        self._make(staged, placed)
        try:
            row = self._connection.quoted(_ROW)
            self._connection.update(f"CREATE UNIQUE INDEX {table}_r ON {staged.table} ({row})")
            self._save(placed, staged.table, "append")
        except BaseException:
            self._drop(staged)
            raise
        return staged

    def commit(self, staged: StagedTable) -> None:
        """Move the staged rows to the table, unless another process has applied the checkpoint."""
        checkpoint = staged.checkpoint
        try:
            with self._connection.transaction():
                if is_mine := self._move(checkpoint):
                    self._apply(staged)
        finally:
            self._drop(staged)
        if not is_mine and is_due(checkpoint, self._opened, self.last(), f"table {self._table}"):
            raise StorageError(
                f"another process wrote {checkpoint} to table {self._table} and rolled it back",
                do="try again",
            )

    def close(self) -> None:
        self._connection.close()

    # -- the task's checkpoint -------------------------------------------------------------

    def _take(self) -> None:
        """Take the table for this generation, so that no other one can write to it."""
        if not self._has_checkpoints():
            with self._unless(self._has_checkpoints):
                self._connection.update(
                    f"CREATE TABLE {self._checkpoints} (workspace VARCHAR(40) NOT NULL,"
                    " task VARCHAR(120) NOT NULL, target_table VARCHAR(200) NOT NULL,"
                    " generation VARCHAR(40) NOT NULL, last_checkpoint DECIMAL(19) NOT NULL,"
                    " PRIMARY KEY (workspace, task, target_table))"
                )
        if self._stored() is None:
            with self._unless(lambda: self._stored() is not None):
                self._connection.update(
                    f"INSERT INTO {self._checkpoints} (generation, last_checkpoint, workspace,"
                    " task, target_table) VALUES (?, 0, ?, ?, ?)",
                    *(self._opened.generation, *self._row),
                )
        while (stored := self._stored()) and stored[0] != self._opened.generation:
            # The check follows the read: so a run that was replaced never takes the table back,
            # however late it comes.
            check_generation(self._workspace.objects, self._opened)
            self._connection.update(
                f"UPDATE {self._checkpoints} SET generation = ?, last_checkpoint = 0"
                f" WHERE {_SAME_ROW} AND generation = ?",
                *(self._opened.generation, *self._row, stored[0]),
            )

    def _has_checkpoints(self) -> bool:
        return bool(self._connection.tables(self._schema_name, re.compile(CHECKPOINTS)))

    @contextmanager
    def _unless(self, is_done: Callable[[], bool]) -> Iterator[None]:
        """Ignore a refusal of the database if another process has just done the same."""
        try:
            yield
        except HeadraceError:
            if not is_done():
                raise

    def _stored(self) -> tuple[str, int] | None:
        found = self._connection.query(
            f"SELECT generation, last_checkpoint FROM {self._checkpoints} WHERE {_SAME_ROW}",
            *self._row,
        )
        return (str(found[0][0]), int(found[0][1])) if found else None

    def _move(self, to: CheckpointId) -> bool:
        moved = self._connection.update(
            f"UPDATE {self._checkpoints} SET last_checkpoint = ?"
            f" WHERE {_SAME_ROW} AND generation = ? AND last_checkpoint = ?",
            *(to.number, *self._row, to.generation, to.number - 1),
        )
        return moved == 1

    # -- rows ------------------------------------------------------------------------------

    def _apply(self, staged: StagedTable) -> None:
        quoted = self._connection.quoted
        here = [quoted(f"headrace_{n}") for n in range(len(staged.columns))]
        there = [quoted(each.name) for each in staged.columns]
        key = ", ".join(here[n] for n in staged.key)
        counts = ", ".join(f"COUNT({here[n]})" for n in staged.key)
        [(rows, *keyed)] = self._connection.query(f"SELECT COUNT(*), {counts} FROM {staged.table}")
        if min(keyed) < rows:
            raise self._wrong_rows(staged.checkpoint, f"{rows - min(keyed)} rows without a key")
        twice = self._connection.query(
            f"SELECT {key} FROM {staged.table} GROUP BY {key} HAVING COUNT(*) > 1"
        )
        if twice:
            shown = ", ".join(map(str, twice[0]))
            raise self._wrong_rows(staged.checkpoint, f"more than one row with key {shown}")
        same = " AND ".join(f"s.{here[n]} = {self._table}.{there[n]}" for n in staged.key)
        self._connection.update(
            f"DELETE FROM {self._table} WHERE EXISTS (SELECT 1 FROM {staged.table} s WHERE {same})"
        )
        inserted = self._connection.update(
            f"INSERT INTO {self._table} ({', '.join(there)})"
            f" SELECT {', '.join(here)} FROM {staged.table}"
        )
        if inserted != rows:
            raise StorageError(
                f"a late Spark task wrote to {staged.table} during the commit of"
                f" {staged.checkpoint}",
                do="try again",
            )

    def _wrong_rows(self, checkpoint: CheckpointId, what: str) -> UsageError:
        return UsageError(
            f"{checkpoint} has {what} for table {self._table}, whose key is {', '.join(self._key)}",
            do="return one row for each key from the task's function",
        )

    def _look(self) -> list[Column]:
        try:
            return self._connection.columns(self._table)
        except UsageError as error:
            raise NotFoundError(
                f"table {self._table} cannot be read: {error.what}",
                do="create it with a primary key, or correct its name",
            ) from error

    def _column(self, name: str) -> Column:
        exactly = [each for each in self._columns if each.name == name]
        alike = exactly or [each for each in self._columns if each.name.lower() == name.lower()]
        if len(alike) != 1:
            raise SchemaError(
                f"table {self._table} in {self._location} has"
                f" {'no' if not alike else 'more than one'} column {name!r}",
                do=f"use one of its columns: {', '.join(each.name for each in self._columns)}",
            )
        return alike[0]

    def _key_numbers(self, names: list[str]) -> list[int]:
        wanted = [self._column(name).name for name in self._key]
        if lacking := next((name for name in wanted if name not in names), None):
            raise SchemaError(
                f"the rows for table {self._table} lack column {lacking!r}, which is in its key",
                do="return that column from the task's function",
            )
        return [names.index(name) for name in wanted]

    # -- staging tables --------------------------------------------------------------------

    def _make(self, staged: StagedTable, rows: DataFrame) -> None:
        """Make an empty staging table.

        Spark knows the types of every database, but not how long texts may be.
        """
        texts = ", ".join(
            f"{field.name} VARCHAR({column.size})"
            for field, column in zip(rows.schema, staged.columns, strict=False)
            if isinstance(field.dataType, StringType)
            and column.type in CHARACTERS
            and 0 < column.size <= _VARCHAR_MAX
        )
        options = {"createTableColumnTypes": texts} if texts else {}
        try:
            self._save(rows.limit(0), staged.table, "error", **options)
        except (PySparkException, Py4JError) as error:
            reason = str(error).partition("\n\n")[0].replace("\n", " ")
            raise StorageError(
                f"staging table {staged.table} for {staged.checkpoint} cannot be made in"
                f" {self._location}: {reason}",
                do="let the user create tables there, and return types that the database has",
            ) from error

    def _save(self, rows: DataFrame, table: str, mode: str, **options: str) -> None:
        given = {**self._options, "dbtable": table, **options}
        rows.write.format("jdbc").options(**given).mode(mode).save()

    def _drop(self, staged: StagedTable) -> None:
        """Drop the staging table. If that fails, the next run drops it."""
        with suppress(HeadraceError):
            self._connection.update(f"DROP TABLE {staged.table}")

    def _sweep(self) -> None:
        """Drop the staging tables of other runs of this task: they were killed or replaced."""
        for table in self._connection.tables(
            self._schema_name, re.compile(self._staging + "[0-9a-f]{8}")
        ):
            self._connection.update(f"DROP TABLE {self._schema}{table}")

    @property
    def _schema_name(self) -> str:
        return self._schema.rstrip(".").rpartition(".")[2].strip('"`[]')


def _shown(url: str) -> str:
    """Return the URL without what may be secret."""
    return _SECRETS.sub("", url)

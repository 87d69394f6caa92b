"""The connection of the driver's JVM to a database, made in the same way as Spark's tasks do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headrace.errors import StorageError, UsageError

CHARACTERS = (1, 12)
"""`CHAR` and `VARCHAR`, as `java.sql.Types` numbers them."""

_ALIVE_S = 5
_ROWS_MAX = 10
_STATEMENT_S = 600
"""How long a statement may wait, such as for a lock that a stopped process holds."""


class Column(NamedTuple):
    name: str
    """The name as the database spells it."""
    type: int
    size: int


class Connection:
    """Every statement is a transaction, unless it is in a `transaction`. For one thread only."""

    def __init__(self, spark: SparkSession, location: str, options: Mapping[str, str]) -> None:
        """`options` are those of Spark's `jdbc` format; `location` names the database in errors."""
        self.location = location
        self._gateway = spark.sparkContext._gateway
        jvm: Any = spark._jvm
        self._executor = jvm.java.util.concurrent.ForkJoinPool.commonPool()
        jdbc = jvm.org.apache.spark.sql
        given = jvm.java.util.HashMap()
        for name, value in options.items():
            given.put(name, value)
        url = options["url"]
        with self._refusals("connect"):
            parsed = jdbc.execution.datasources.jdbc.JDBCOptions(
                url, options["dbtable"], jvm.PythonUtils.toScalaMap(given)
            )
            self._jdbc = jdbc.jdbc.JdbcDialects.get(url).createConnectionFactory(parsed).apply(-1)
            self._metadata = self._jdbc.getMetaData()
            self._quote = str(self._metadata.getIdentifierQuoteString()).strip()
            if not self._metadata.supportsTransactions():
                self._jdbc.close()
                raise UsageError(
                    f"{location} has no transactions",
                    do="use another database, or hr.writer('jdbc')",
                )

    @property
    def is_alive(self) -> bool:
        """False if the connection has ended: databases and networks end idle connections."""
        with self._refusals("say whether it is connected"):
            return bool(self._jdbc.isValid(_ALIVE_S))

    def close(self) -> None:
        with self._refusals("disconnect"):
            self._jdbc.close()

    def quoted(self, name: str) -> str:
        return f"{self._quote}{name.replace(self._quote, 2 * self._quote)}{self._quote}"

    def query(self, sql: str, *values: str | int) -> list[tuple[Any, ...]]:
        """Return the first rows of the result. For queries with few rows."""
        with self._prepared(sql, values) as statement:
            statement.setMaxRows(_ROWS_MAX)
            result = statement.executeQuery()
            columns = range(1, result.getMetaData().getColumnCount() + 1)
            rows = []
            while result.next():
                rows.append(tuple(result.getObject(n) for n in columns))
            return rows

    def update(self, sql: str, *values: str | int) -> int:
        """Run a statement and return how many rows it changed."""
        with self._prepared(sql, values) as statement:
            return int(statement.executeUpdate())

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit what the block does; roll all of it back if the block raises."""
        with self._refusals("begin a transaction"):
            self._jdbc.setAutoCommit(False)
        try:
            yield
            with self._refusals("commit"):
                self._jdbc.commit()
        except BaseException:
            self._roll_back()
            raise
        with suppress(StorageError), self._refusals("end a transaction"):
            self._jdbc.setAutoCommit(True)

    def _roll_back(self) -> None:
        """Roll back. If that fails, cut the connection: turning auto-commit on would commit."""
        try:
            with self._refusals("roll back"):
                self._jdbc.rollback()
                self._jdbc.setAutoCommit(True)
        except (StorageError, UsageError):
            # A database rolls back the transaction of a connection that was cut.
            with suppress(StorageError, UsageError), self._refusals("disconnect"):
                self._jdbc.abort(self._executor)

    def columns(self, table: str) -> list[Column]:
        with self._prepared(f"SELECT * FROM {table} WHERE 1 = 0", ()) as statement:
            metadata = statement.executeQuery().getMetaData()
            return [
                Column(
                    str(metadata.getColumnName(n)),
                    int(metadata.getColumnType(n)),
                    metadata.getPrecision(n),
                )
                for n in range(1, metadata.getColumnCount() + 1)
            ]

    def tables(self, schema: str, name: re.Pattern[str]) -> list[str]:
        """Return the tables of a schema, or of the default schema, whose names match."""
        with self._refusals("list the tables"):
            schema = schema or self._jdbc.getSchema() or ""
            listed = self._metadata.getTables(self._jdbc.getCatalog(), None, "%", None)
            found = []
            while listed.next():
                there = listed.getString("TABLE_SCHEM") or listed.getString("TABLE_CAT") or ""
                if not schema or there.lower() == schema.lower():
                    found.append(str(listed.getString("TABLE_NAME")))
            listed.close()
        return [each for each in found if name.fullmatch(each.lower())]

    @contextmanager
    def _prepared(self, sql: str, values: tuple[str | int, ...]) -> Iterator[Any]:
        with self._refusals(f"do {sql}"):
            statement = self._jdbc.prepareStatement(sql)
            try:
                statement.setQueryTimeout(_STATEMENT_S)
                for n, value in enumerate(values, 1):
                    if isinstance(value, str):
                        statement.setString(n, value)
                    else:
                        statement.setLong(n, value)
                yield statement
            finally:
                statement.close()

    @contextmanager
    def _refusals(self, action: str) -> Iterator[None]:
        try:
            yield
        except Py4JJavaError as error:
            cause = error.java_exception
            kind, reason = str(cause.getClass().getName()), _first_line(cause.getMessage())
            if kind == "java.lang.ClassNotFoundException":
                raise UsageError(
                    f"{self.location}: Spark has no class {reason}",
                    do="name the driver's class, and add its jar to spark.jars",
                ) from error
            if reason == "No suitable driver":
                raise UsageError(
                    f"Spark has no driver for {self.location}",
                    do="correct the URL, or add the driver's jar to spark.jars",
                ) from error
            if self._is_wrong_statement(cause):
                raise UsageError(
                    f"{self.location} refused to {action}: {reason}",
                    do="correct the names, or give the user access",
                ) from error
            raise StorageError(
                f"{self.location} refused to {action}: {reason}",
                do="correct what the database names, then try again",
            ) from error
        except PySparkException as error:
            raise UsageError(
                f"{self.location} refused to {action}: {_first_line(error)}",
                do="correct the options",
            ) from error

    def _is_wrong_statement(self, cause: Any) -> bool:
        """Return True if the statement was wrong, such as one that names a missing table."""
        is_sql = is_instance_of(self._gateway, cause, "java.sql.SQLException")
        return is_sql and str(cause.getSQLState()).startswith("42")


def _first_line(text: object) -> str:
    return str(text).partition("\n")[0].strip()

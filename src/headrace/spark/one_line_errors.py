"""Telling a user in one line what is wrong with a query.

Spark shows whatever its Python workers raise as a traceback, inside of an exception of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from headrace.errors import HeadraceError
from headrace.spark.query_failure import explain

_WORKER = "SPARK_PYTHON_RUNTIME"
"""In the environment of every Python worker of Spark."""
_HIDE = "SPARK_HIDE_TRACEBACK"


@contextmanager
def without_traceback() -> Iterator[None]:
    """In a worker: what is raised as an error of ours reaches the user as its message alone.

    Spark looks at the variable when it hands the error on, and the worker ends with that. So the
    variable concerns nothing else that the worker does.
    """
    try:
        yield
    except HeadraceError:
        if _WORKER in os.environ:
            os.environ[_HIDE] = "1"
        raise


@contextmanager
def raised_as_ours() -> Iterator[None]:
    """In the driver: an error of Spark is raised as the error of ours that it stands for."""
    try:
        yield
    except (Py4JError, PySparkException) as error:
        raise explain(error) from None

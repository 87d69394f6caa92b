"""Spark finds `format("headrace")` here: it imports modules whose names begin with `pyspark_`."""

from headrace.spark.source.datasource import HeadraceSource as DefaultSource

__all__ = ["DefaultSource"]

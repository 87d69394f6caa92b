"""Spark looks for modules of such names: this is why `format("headrace")` is known everywhere."""

from headrace.spark.source.datasource import HeadraceSource as DefaultSource

__all__ = ["DefaultSource"]

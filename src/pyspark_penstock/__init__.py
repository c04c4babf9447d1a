"""Spark finds modules of this kind of name by itself, so `format("penstock")` just works."""

from penstock.spark.source import PenstockDataSource as DefaultSource

__all__ = ["DefaultSource"]

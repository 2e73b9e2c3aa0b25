"""What the running Spark can do, found by looking for it. No module compares versions.

| Spark | lacks | in its place |
|---|---|---|
| 3.5 | Python data sources, so `format("txn_half")` | `write_batch`, as the refusal says |
| 3.5 | functions that validate text | `is_text` decodes and encodes it |
| 3.5 | the execution context of a running query | `sink.checkpoint` asks the query itself |
| 3.5, 4.0 | writers of streams that take Arrow | `StreamWriterBase` takes rows |
| 3.5, 4.0 | classes of the JVM where 4.1 has them | `java_class` knows where they were |
| a client of Spark Connect | Py4J | `SPARK_ERRORS` has PySpark's own errors only |
"""

from __future__ import annotations

import json
from functools import reduce
from typing import TYPE_CHECKING, TypedDict, cast

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from halfbridge.spark_jobs.errors import JobError

if TYPE_CHECKING:
    from py4j.java_gateway import JavaClass, JVMView
    from pyspark.sql import Column

# What calls of Spark raise.
SPARK_ERRORS: tuple[type[Exception], ...]
try:
    from py4j.protocol import Py4JError

    SPARK_ERRORS = (PySparkException, Py4JError)
except ModuleNotFoundError:
    SPARK_ERRORS = (PySparkException,)

try:
    from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

    HAS_DATA_SOURCES = True
except ImportError:
    # Bases without methods, so that a class of the sink can be made and nothing more.
    DataSource = DataSourceArrowWriter = WriterCommitMessage = object  # type: ignore[misc,assignment]
    HAS_DATA_SOURCES = False

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamWriterBase

    STREAMS_ARROW = True
except ImportError:
    try:
        from pyspark.sql.datasource import (  # type: ignore[assignment]  # the other's methods
            DataSourceStreamWriter as StreamWriterBase,
        )
    except ImportError:
        # As above: without methods.
        StreamWriterBase = object  # type: ignore[misc,assignment]
    STREAMS_ARROW = False

__all__ = [
    "HAS_DATA_SOURCES",
    "SPARK_ERRORS",
    "STREAMS_ARROW",
    "DataSource",
    "DataSourceArrowWriter",
    "StreamWriterBase",
    "WriterCommitMessage",
    "is_text",
    "java_class",
    "progress_of",
    "require_data_sources",
    "valid_text",
]


def require_data_sources() -> None:
    """Do nothing where a data source may be written in Python.

    Raises:
        JobError: this Spark has none; the user must take Spark 4.0 or later.
    """
    if not HAS_DATA_SOURCES:
        raise JobError(
            'format("txn_half") is a Python data source: Spark 4.0 has them,'
            f" Spark {pyspark.__version__} does not. Use halfbridge.spark.write_batch in"
            " foreachBatch, or Spark 4.0 or later"
        )


def is_text(column: Column) -> Column:
    """Return whether a string column is UTF-8; null for null."""
    if hasattr(F, "is_valid_utf8"):
        return F.is_valid_utf8(column)
    # Java's decoder replaces what is no UTF-8, so only UTF-8 comes back as it was.
    data = column.cast("binary")
    return F.encode(F.decode(data, "UTF-8"), "UTF-8") == data


def valid_text(column: Column) -> Column:
    """Return a string column; null in place of what is not UTF-8."""
    if hasattr(F, "try_validate_utf8"):
        return F.try_validate_utf8(column)
    return F.when(is_text(column), column)


class SourceProgress(TypedDict, total=False):
    """The progress of one source in a report; offsets are in the source's own form."""

    endOffset: object
    latestOffset: object
    metrics: dict[str, str] | None


class Progress(TypedDict, total=False):
    """Spark's report on a batch as JSON: the parts that are read here."""

    id: str
    name: str | None
    batchId: int
    numInputRows: int
    inputRowsPerSecond: float
    processedRowsPerSecond: float
    durationMs: dict[str, int]
    sources: list[SourceProgress]
    stateOperators: list[dict[str, int]]
    observedMetrics: dict[str, dict[str, int | None]]  # a query of others may observe other types


def progress_of(report: dict[str, object]) -> Progress:
    """Return an element of `StreamingQuery.recentProgress` as JSON has it."""
    text = getattr(report, "json", None)  # Spark 3.5 gives a dictionary that is JSON already
    return json.loads(text) if text else cast("Progress", report)


def java_class(jvm: JVMView, *names: str) -> JavaClass:
    """Return the first class of these names that the driver's JVM has; newest place first.

    Raises:
        JobError: it has none of them; the user must take a Spark that the documents name.
    """
    from py4j.java_gateway import JavaClass  # noqa: PLC0415  (needs a JVM)

    for name in names:
        found = reduce(getattr, name.split("."), jvm)
        if isinstance(found, JavaClass):
            return found
    raise JobError(f"Spark {pyspark.__version__} has no class {names[0]}")

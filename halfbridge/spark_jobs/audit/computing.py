"""How the audit has Spark compute: what is kept, and the options for few rows."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from pyspark.sql import functions as F
from pyspark.storagelevel import StorageLevel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

_Value = TypeVar("_Value")  # of a column, whose type the caller knows
# Up to this many facts about transactions that are not plain, planning takes longer than computing:
# 210,000 facts took 15 to 17 s in one partition, and 17 to 20 s in eight (2 cores). So they are
# computed in one partition, without shuffles, generated code or adaptive planning.
_FEW = 300_000
# Up to this many records the same holds for a whole audit: one of 90,000 took 9 to 10 s instead of
# 11 to 13, one of 2,989 with the start of Spark 35 s instead of 41, but one of 299,000 14 to 18
# instead of 8 to 15 (2026-12-01, 2 cores).
FEW_RECORDS = 100_000
_FOR_FEW = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
}


@contextmanager
def keeping() -> Iterator[Callable[[DataFrame], DataFrame]]:
    """Yield a function that persists a frame for the time of the block."""
    kept: list[DataFrame] = []

    def keep(frame: DataFrame) -> DataFrame:
        kept.append(frame.persist(StorageLevel.MEMORY_AND_DISK))
        return frame

    try:
        yield keep
    finally:
        for frame in kept:
            frame.unpersist()


def computed(frame: DataFrame) -> DataFrame:
    """Compute a frame, and return it without its lineage.

    Spark's planner traverses the lineage of every joined frame repeatedly. After a few joins of a
    frame with frames that were derived from it, planning takes longer than computing all rows.
    """
    settled: DataFrame = frame.localCheckpoint(eager=True)
    return settled


def counted(frame: DataFrame, column: str) -> Counter[_Value]:
    """Return value -> number of rows that have it, for a column with few values."""
    rows = frame.groupBy(column).agg(F.count(F.lit(1))).collect()
    return Counter(dict(rows))


@contextmanager
def for_few(session: SparkSession, count: int, *, few: int = _FEW) -> Iterator[bool]:
    """Set the options for few rows for the time of the block, if `count` are; yield whether."""
    with _options(session, _FOR_FEW if count <= few else {}):
        yield count <= few


@contextmanager
def _options(session: SparkSession, options: Mapping[str, str]) -> Iterator[None]:
    """Set options of the session for the time of the block: the session may be the user's."""
    before = {name: str(session.conf.get(name)) for name in options}
    try:
        for name, value in options.items():
            session.conf.set(name, value)
        yield
    finally:
        for name, value in before.items():
            session.conf.set(name, value)

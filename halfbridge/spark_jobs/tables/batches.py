"""Tables that add each batch of an application once: what all formats have in common.

The number of a batch is part of the commit that adds its rows, and a table refuses a second commit
of that number. So a batch that is run again, or by two runs at once, is in the table once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from halfbridge.spark_jobs.capabilities import SPARK_ERRORS
from halfbridge.spark_jobs.errors import JobError, cause_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession


class BatchTable(ABC):
    """A table of one format, made at the first batch."""

    kind: ClassVar[str]  # what errors call it
    # What `_commit` raises where rows were not added.
    errors: ClassVar[tuple[type[Exception], ...]] = SPARK_ERRORS

    def __init__(self, spark: SparkSession, name: str, partition_by: Sequence[str]) -> None:
        self.name = name  # of a catalog, or a path
        self._spark = spark
        self._partition_by = list(partition_by)

    @abstractmethod
    def version_of(self, app_id: str) -> int | None:
        """Return the newest version that `app_id` committed; None: none is known, or no table."""

    def known_since_ms(self) -> int:
        """Return since when `version_of` knows all commits, milliseconds since 1970; 0: always."""
        return 0

    def append(self, rows: DataFrame, *, app_id: str, version: int) -> bool:
        """Add `rows` unless `app_id` has done so under this version; tell whether this call did.

        A run that is killed in between repeats all of it, or finds it done.

        Raises:
            JobError: the table cannot accept them (another schema, a writer that changed it at the
                same moment), or its catalog refuses; the user must act.
        """
        if has_version(self.version_of(app_id), version):
            return False
        try:
            return self._commit(rows, app_id, version)
        except self.errors as error:
            if has_version(self.version_of(app_id), version):
                return False
            raise JobError(f"{self.kind} table {self.name}: {cause_of(error)}") from error

    @abstractmethod
    def _commit(self, rows: DataFrame, app_id: str, version: int) -> bool:
        """Add `rows` in one commit, and make the table if need be; tell whether this call did."""


def has_version(newest: int | None, version: int) -> bool:
    """Tell whether an application that has committed `newest` has committed `version`."""
    return newest is not None and newest >= version

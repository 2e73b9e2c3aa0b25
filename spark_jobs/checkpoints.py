"""Whose checkpoint it is. Exactly once holds only while a checkpoint and its output stay together.

A file beside Spark's own, `job.json`, says which job the checkpoint belongs to. Started as
another one, a job refuses: with other topics or another output it would skip or repeat rows, and
Spark would not say a word.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from halfbridge.spark_jobs.errors import JobError
from halfbridge.spark_jobs.storage import Storage, join

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

JOB_FILE = "job.json"


class Checkpoint:
    """A streaming job's checkpoint directory."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.path = path
        self._storage = Storage(spark)

    @property
    def is_new(self) -> bool:
        """Tell whether no batch was ever planned."""
        return self._newest("offsets") is None

    @property
    def newest_commit(self) -> int | None:
        """Number of the newest batch that Spark noted as done."""
        return self._newest("commits")

    def claim(self, identity: Mapping[str, Any]) -> None:
        """Write job.json while the checkpoint is new; later, compare.

        A first run that failed (a topic misspelt, say) has planned nothing: what it wrote binds
        nobody.

        Args:
            identity: What must stay as it is, in words of the job's options; JSON values.

        Raises:
            JobError: the checkpoint is another job's; the user must act.
        """
        place = join(self.path, JOB_FILE)
        if self.is_new:
            self._storage.remove(place)
            self._storage.create(place, json.dumps(dict(identity), indent=1) + "\n")
            return
        text = self._storage.read(place)
        if text is None:
            raise JobError(
                f"{self.path} has progress and no {JOB_FILE}: it is the checkpoint of another"
                " program. Give an empty directory as --checkpoint."
            )
        try:
            was: dict[str, Any] = json.loads(text)
        except ValueError as error:
            raise JobError(f"{place} is damaged: {error}. Restore it, or begin anew.") from error
        names = sorted(was.keys() | identity.keys())
        other = [name for name in names if was.get(name) != identity.get(name)]
        if other:
            told = "; ".join(
                f"{name} was {_word(was.get(name))}, now it is {_word(identity.get(name))}"
                for name in other
            )
            raise JobError(
                f"the checkpoint {self.path} belongs to another job: {told}. Start it as it was,"
                " or give a new --checkpoint and another place for what it writes."
            )

    def _newest(self, log: str) -> int | None:
        numbers = [
            int(name) for name in self._storage.names(join(self.path, log)) if name.isdigit()
        ]
        return max(numbers, default=None)


def _word(value: Any) -> str:
    return "not given" if value in (None, "", []) else json.dumps(value)

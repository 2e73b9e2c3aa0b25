"""Whose checkpoint it is. Exactly once holds only while a checkpoint and its output stay together.

A file beside Spark's own, `job.json`, says which job the checkpoint belongs to. Started as
another one, a job refuses: with other topics or another output it would skip or repeat rows, and
Spark would not say a word.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from halfbridge.spark_jobs.jobs.errors import JobError
from halfbridge.spark_jobs.tables.storage import Storage, join

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
        return count_done(self._storage, join(self.path, "offsets")) == 0

    @property
    def batches_done(self) -> int:
        """How many batches Spark noted as done."""
        return count_done(self._storage, join(self.path, "commits"))

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
        remedy = "give a new --checkpoint and another place for what it writes"
        check_same(self.path, was, identity, remedy=remedy)


def check_same(
    path: str, was: Mapping[str, Any], identity: Mapping[str, Any], *, remedy: str
) -> None:
    """Check that a checkpoint is the one of the job that is started.

    Args:
        path: Of the checkpoint.
        was: The identity that stands in the checkpoint.
        identity: Of the job.
        remedy: What the user can do where the job is to be another one.

    Raises:
        JobError: it is another job's; the user must act.
    """
    names = sorted(was.keys() | identity.keys())
    told = "; ".join(
        f"{name} was {_word(was.get(name))}, now it is {_word(identity.get(name))}"
        for name in names
        if was.get(name) != identity.get(name)
    )
    if told:
        raise JobError(
            f"the checkpoint {path} belongs to another job: {told}. Start it as it was, or"
            f" {remedy}."
        )


def count_done(storage: Storage, directory: str) -> int:
    """Return how many steps are noted in a directory, by a file for each: `0`, `1` and so on."""
    numbers = [int(name) for name in storage.names(directory) if name.isdigit()]
    return max(numbers, default=-1) + 1


def _word(value: Any) -> str:
    return "not given" if value in (None, "", []) else json.dumps(value)

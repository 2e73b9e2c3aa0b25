"""Whose checkpoint it is. Exactly once holds only while a checkpoint and its output stay together.

A file beside Spark's own, `job.json`, says which job the checkpoint belongs to. Started as
another one, a job refuses: with other topics or another output it would skip or repeat rows, and
Spark would not say a word.

Spark keeps offsets by the topic's name. A topic that is deleted and created again begins at offset
0 once more, and Spark goes on at the old offset. So a second file, `topic_ids.json`, has Kafka's
ids of the topics. It is a file of its own because topics of a pattern come and go.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from halfbridge.spark_jobs.jobs.errors import JobError
from halfbridge.spark_jobs.jobs.topic_ids import refuse_changed
from halfbridge.spark_jobs.tables.storage import Storage, join

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession

JOB_FILE = "job.json"
TOPIC_IDS_FILE = "topic_ids.json"
# A plan's first lines are its version and Spark's settings; one line for each source follows.
_OFFSETS_FROM_LINE = 2
_NO_OFFSETS = "-"


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

    def check_topics(self, ask: Callable[[], Mapping[str, str]], *, remedy: str) -> None:
        """Compare the ids of the topics with those that are kept, and keep those of new topics.

        A checkpoint of halfbridge 0.1 has no ids: those of now are kept.

        Args:
            ask: Returns topic -> id of the job's topics that the cluster has.
            remedy: What the user can do about a topic that was deleted.

        Raises:
            TopicsChangedError: a topic in which offsets are kept is gone, or was made anew; the
                user must act.
        """
        # Asked before the plans are read: offsets that are planned later are of these topics, or
        # of later ones, whose ids differ at the next comparison. The other way round the id of a
        # topic could be kept for offsets of its predecessor.
        present = ask()
        planned = self._planned_topics()
        kept = self._topic_ids()
        refuse_changed(
            f"the checkpoint {self.path}",
            {topic: kept.get(topic, "") for topic in planned},
            present,
            remedy=remedy,
        )
        known = {topic: kept.get(topic) or present[topic] for topic in planned}
        if (fresh := {**present, **known}) != kept:
            text = json.dumps(fresh, indent=1, sort_keys=True) + "\n"
            self._storage.replace(join(self.path, TOPIC_IDS_FILE), text)

    def _planned_topics(self) -> set[str]:
        """Return the topics of which the next batch needs the kept offsets."""
        planned = count_done(self._storage, join(self.path, "offsets"))
        # A batch that is not done begins where the one before it ended.
        return {
            topic
            for number in range(max(0, min(planned, self.batches_done) - 1), planned)
            for offsets in self._offsets(number)
            for topic in offsets
        }

    def _offsets(self, number: int) -> list[dict[str, Any]]:
        """Return topic -> offsets of each source in the plan of a batch; none without a plan."""
        plan = self._storage.read(join(self.path, "offsets", str(number))) or ""
        sources = plan.split("\n")[_OFFSETS_FROM_LINE:]
        return [json.loads(each) for each in sources if each not in ("", _NO_OFFSETS)]

    def _topic_ids(self) -> dict[str, str]:
        place = join(self.path, TOPIC_IDS_FILE)
        try:
            kept: dict[str, str] = json.loads(self._storage.read(place) or "{}")
        except ValueError as error:
            raise JobError(
                f"{place} is damaged: {error}. Restore it; or remove it, if none of the topics was"
                " deleted since the last run"
            ) from error
        return kept


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

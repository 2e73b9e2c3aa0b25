"""Binds a checkpoint to one job, one output and its topics: only then is each row written once.

A file next to Spark's own, `job.json`, says which job the checkpoint belongs to. A job refuses the
checkpoint of another one: with other topics or another output it would skip or repeat rows, without
an error of Spark's.

Spark keeps offsets by the topic's name. A topic that is deleted and created again begins at offset
0 once more, and Spark continues at the old offset. So a second file, `topic_ids.json`, has Kafka's
ids of the topics. It is a file of its own because topics of a pattern come and go.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from halfbridge.spark_jobs.errors import JobError
from halfbridge.spark_jobs.tables.storage import Storage, join

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pyspark.sql import SparkSession

JOB_FILE = "job.json"
TOPIC_IDS_FILE = "topic_ids.json"
# What Spark notes of a done batch of a query without watermark and state.
_DONE = 'v1\n{"nextBatchWatermarkMs":0}'
# A plan's first lines are its version and Spark's settings; one line for each source follows.
_METADATA_LINE = 1
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
        return self.batches_planned == 0

    @property
    def batches_planned(self) -> int:
        """How many batches Spark planned; it runs one that is not done again."""
        return count_done(self._storage, join(self.path, "offsets"))

    @property
    def batches_done(self) -> int:
        """How many batches Spark noted as done."""
        return count_done(self._storage, join(self.path, "commits"))

    def unfinished(self) -> tuple[int, int] | None:
        """Return number and time of a batch that Spark planned and will run again; None: none.

        The time is in milliseconds since 1970.
        """
        number = self.batches_planned - 1
        if number < self.batches_done:
            return None
        plan = self._storage.read(join(self.path, "offsets", str(number))) or ""
        metadata = json.loads(plan.split("\n")[_METADATA_LINE])
        return number, int(metadata["batchTimestampMs"])

    def claim(self, identity: Mapping[str, object]) -> None:
        """Write job.json while the checkpoint is new; later, compare.

        A first run that failed (a topic misspelt, say) has planned nothing: its job.json does not
        bind later runs.

        Raises JobError: the checkpoint is of another job, or damaged; the user follows the text.
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
            was: Mapping[str, object] = json.loads(text)
        except ValueError as error:
            raise JobError(
                f"{place} is damaged: {error}. Restore it, or begin with a new checkpoint."
            ) from error
        remedy = "give a new --checkpoint and another output"
        check_same(self.path, was, identity, remedy=remedy)

    def check_topics(self, ask: Callable[[], Mapping[str, str]], *, remedy: str) -> None:
        """Compare the ids of the topics with those that are kept, and keep those of new topics.

        A checkpoint of halfbridge 0.1 has no ids: those of now are kept. `ask` returns topic -> id
        of the job's topics that the cluster has; `remedy` is the user's remedy for a deleted topic.

        Raises:
            TopicsChangedError: a topic with kept offsets was deleted, or was created again; the
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
            self._keep_topic_ids(fresh)

    def accept_deleted(
        self,
        topics: Iterable[str],
        ask: Callable[[], Mapping[str, str]],
        starts: Callable[[str], Mapping[str, int]],
        *,
        newest_written: int | None,
        show: Callable[[str], None],
    ) -> None:
        """Forget the offsets of topics that were deleted since they were planned.

        A topic that was created again is read from its first offset, which `starts` returns by
        partition. Rows of the deleted topic that were not read are lost. A topic that was not
        deleted is shown, and keeps its offsets. For a query without watermark and state, whose
        sources are Kafka's. `newest_written` is the newest batch that the output has; None: none.
        """
        present, kept, planned = ask(), self._topic_ids(), self._planned_topics()
        accepted: dict[str, Mapping[str, int] | None] = {}
        for topic in topics:
            if topic not in planned or (topic in present and kept.get(topic) == present[topic]):
                show(f"{topic} was not deleted since the last run: nothing to accept")
            elif topic in present:
                accepted[topic] = starts(topic)
                show(f"{topic} was created again: it is read from its first offset")
            else:
                accepted[topic] = None
                show(f"{topic} was deleted: its offsets are forgotten")
        if not accepted:
            return
        newest = self._settle_newest(newest_written)
        if newest is not None:
            self._edit_plan(newest, accepted)
        # Last, so that a kill before this leaves an error, and not the new id with old offsets.
        left = {topic: each for topic, each in kept.items() if topic not in accepted}
        self._keep_topic_ids(left)

    def _settle_newest(self, newest_written: int | None) -> int | None:
        """Return the newest planned batch, which is done then; None: there is none.

        Spark would run a batch that is not done again, by its plan, and cannot where a topic of
        the plan is gone. If the output has the batch, only Spark's note is missing. If not,
        nothing of the batch has been written, and it may be planned again.
        """
        newest = count_done(self._storage, join(self.path, "offsets")) - 1
        if newest >= self.batches_done:
            if newest_written is not None and newest_written >= newest:
                self._storage.replace(join(self.path, "commits", str(newest)), _DONE)
            else:
                self._storage.remove(join(self.path, "offsets", str(newest)))
                newest -= 1
        return newest if newest >= 0 else None

    def _edit_plan(self, number: int, changes: Mapping[str, Mapping[str, int] | None]) -> None:
        """Replace the offsets of topics in the plan of a batch; None: remove them."""
        place = join(self.path, "offsets", str(number))
        plan = (self._storage.read(place) or "").split("\n")
        for at in range(_OFFSETS_FROM_LINE, len(plan)):
            if plan[at] in ("", _NO_OFFSETS):
                continue
            offsets = json.loads(plan[at])
            for topic in offsets.keys() & changes.keys():
                if (starts := changes[topic]) is None:
                    del offsets[topic]
                else:
                    offsets[topic] = dict(starts)
            plan[at] = json.dumps(offsets, separators=(",", ":"))
        self._storage.replace(place, "\n".join(plan))

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

    def _offsets(self, number: int) -> list[Mapping[str, object]]:
        """Return topic -> offsets of each source in the plan of a batch; none without a plan."""
        plan = self._storage.read(join(self.path, "offsets", str(number))) or ""
        sources = plan.split("\n")[_OFFSETS_FROM_LINE:]
        return [json.loads(each) for each in sources if each not in ("", _NO_OFFSETS)]

    def _keep_topic_ids(self, ids: Mapping[str, str]) -> None:
        text = json.dumps(ids, indent=1, sort_keys=True) + "\n"
        self._storage.replace(join(self.path, TOPIC_IDS_FILE), text)

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
    path: str,
    was: Mapping[str, object],
    identity: Mapping[str, object],
    *,
    remedy: str,
    what: str = "checkpoint",
) -> None:
    """Refuse a job that is not the one whose identity is `was` in the checkpoint, or in `what`.

    Raises JobError: it is another job; the user follows `remedy`.
    """
    names = sorted(was.keys() | identity.keys())
    changes = "; ".join(
        f"{name} was {_word(was.get(name))}, now it is {_word(identity.get(name))}"
        for name in names
        if was.get(name) != identity.get(name)
    )
    if changes:
        raise JobError(
            f"the {what} {path} belongs to another job: {changes}. Start it as it was, or {remedy}."
        )


def count_done(storage: Storage, directory: str) -> int:
    """Return how many steps are noted in a directory, by a file for each: `0`, `1` and so on."""
    numbers = [int(name) for name in storage.names(directory) if name.isdigit()]
    return max(numbers, default=-1) + 1


def _word(value: object) -> str:
    return "not given" if value in (None, "", []) else json.dumps(value)


class TopicsChangedError(JobError):
    """A topic with kept offsets was deleted, or was created again; the user must act."""


def refuse_changed(
    what: str, kept: Mapping[str, str], present: Mapping[str, str], *, remedy: str
) -> None:
    """Refuse offsets of topics that were deleted or created again.

    `kept` and `present` are topic -> id, of the topics with offsets and of those that the cluster
    has; an empty id is not compared.

    Raises:
        TopicsChangedError: a topic was deleted or created again; the text names all of them, where
            the offsets are kept (`what`), and the user's `remedy`.
    """
    gone = sorted(kept.keys() - present.keys())
    recreated = sorted(
        topic
        for topic in kept.keys() & present.keys()
        if kept[topic] and present[topic] and kept[topic] != present[topic]
    )
    changed = []
    if recreated:
        ids = ", ".join(f"{each} (id {kept[each]}, now {present[each]})" for each in recreated)
        changed.append(
            f"of topics that were deleted and created again, so that they are of other records"
            f" now: {ids}"
        )
    if gone:
        names = ", ".join(gone)
        changed.append(
            f"of topics that were deleted, or that this user may not DESCRIBE any more: {names}"
        )
    if changed:
        raise TopicsChangedError(f"{what} has offsets {'; and '.join(changed)}. {remedy}")

"""Whether topics are still the ones of which offsets were kept. Pure.

Offsets that are kept outside Kafka name a topic, and mean one incarnation of it: a topic that is
deleted and created again has other records at the same offsets. Its id tells, which Kafka gives to
each topic at its creation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.spark_jobs.jobs.errors import JobError

if TYPE_CHECKING:
    from collections.abc import Mapping


class TopicsChangedError(JobError):
    """A topic of which offsets were kept is gone, or was made anew; the user must act."""


def refuse_changed(
    what: str, kept: Mapping[str, str], present: Mapping[str, str], *, remedy: str
) -> None:
    """Refuse offsets of topics that are gone or were made anew.

    Args:
        what: Where the offsets are kept, for the error.
        kept: Topic -> id of each topic with offsets; an empty id is not compared.
        present: Topic -> id of the topics that the cluster has; an empty id is not compared.
        remedy: What the user can do, for the error.

    Raises:
        TopicsChangedError: a topic is gone or was made anew; the text names all of them.
    """
    gone = sorted(kept.keys() - present.keys())
    anew = sorted(
        topic
        for topic in kept.keys() & present.keys()
        if kept[topic] and present[topic] and kept[topic] != present[topic]
    )
    changed = []
    if anew:
        ids = ", ".join(f"{each} (id {kept[each]}, now {present[each]})" for each in anew)
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

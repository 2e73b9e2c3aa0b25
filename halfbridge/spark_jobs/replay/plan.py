"""Divides the rows of a replay into slices, which stay the same when it is resumed. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence  # noqa: TC003 (fields' types)
from dataclasses import dataclass
from typing import Any

from halfbridge.spark_jobs.jobs.errors import JobError

PLAN_VERSION = 1
Bounds = dict[tuple[str, int], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Place:
    """The rows of one source partition.

    Attributes:
        topic: Source topic.
        partition: Source partition.
        low: Lowest offset of the rows.
        high: Highest offset of the rows, plus one.
        rows: Number of rows.
    """

    topic: str
    partition: int
    low: int
    high: int
    rows: int


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """The plan of a whole replay.

    Attributes:
        identity: The settings that must not change when the replay is resumed; JSON values.
        places: The source partitions.
        slices: Number of slices; each is one batch of the sink.
        topic_id: Kafka's id of the source topic; empty for a table, and in plans of halfbridge 0.1.
    """

    identity: Mapping[str, Any]
    places: tuple[Place, ...]
    slices: int
    topic_id: str = ""

    @property
    def rows(self) -> int:
        """Number of rows in all source partitions."""
        return sum(place.rows for place in self.places)

    def bounds(self, number: int) -> Bounds:
        """Return the offsets [low, high) of each source partition in slice `number`.

        Each slice takes its share of each partition, in the order of the offsets, so that rows with
        the same key keep their order. Example: of a partition with the offsets 0 to 999, slice 1 of
        4 has [250, 500).
        """
        return {
            (place.topic, place.partition): (_cut(place, number, self.slices), end)
            for place in self.places
            if (end := _cut(place, number + 1, self.slices)) > _cut(place, number, self.slices)
        }

    def to_json(self) -> str:
        """Return the plan as the text of the checkpoint's file."""
        places = [
            [place.topic, place.partition, place.low, place.high, place.rows]
            for place in self.places
        ]
        plan = {
            "plan_version": PLAN_VERSION,
            "identity": dict(self.identity),
            "slices": self.slices,
            "topic_id": self.topic_id,
            "places": places,
        }
        return json.dumps(plan, indent=1) + "\n"


def make_plan(
    identity: Mapping[str, Any], places: Sequence[Place], *, slice_rows: int, topic_id: str = ""
) -> ReplayPlan:
    """Return a plan of slices with about `slice_rows` rows each; 0 slices for 0 rows."""
    rows = sum(place.rows for place in places)
    ordered = sorted(places, key=lambda place: (place.topic, place.partition))
    return ReplayPlan(identity, tuple(ordered), -(-rows // slice_rows), topic_id)


def read_plan(text: str, where: str) -> ReplayPlan:
    """Return the plan in the text of a checkpoint's file.

    Raises:
        JobError: The text is damaged or of another version; the user must act.
    """
    try:
        kept = json.loads(text)
        if kept["plan_version"] != PLAN_VERSION:
            raise ValueError(f"version {kept['plan_version']}")  # noqa: TRY301 (one handler)
        places = tuple(Place(*each) for each in kept["places"])
        topic_id = str(kept.get("topic_id", ""))
        return ReplayPlan(kept["identity"], places, int(kept["slices"]), topic_id)
    except (ValueError, KeyError, TypeError) as error:
        raise JobError(
            f"{where} is damaged: {error}. Restore it, or start again with another --replay-id"
        ) from error


def _cut(place: Place, number: int, slices: int) -> int:
    return place.low + (place.high - place.low) * number // slices

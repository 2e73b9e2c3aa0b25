"""What a replay sends, cut into slices that are the same however often it is resumed. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence  # noqa: TC003 (fields' types)
from dataclasses import dataclass
from typing import Any

from halfbridge.spark_jobs.errors import JobError

PLAN_VERSION = 1
Bounds = dict[tuple[str, int], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Place:
    """The rows of one source partition.

    Attributes:
        topic: Topic they come from.
        partition: Its partition.
        low: Lowest offset among them.
        high: Highest offset among them, plus one.
        rows: How many they are.
    """

    topic: str
    partition: int
    low: int
    high: int
    rows: int


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """All of a replay.

    Attributes:
        identity: What must stay as it is, in words of the job's options; JSON values.
        places: Where the rows stand.
        slices: How many batches they are sent in.
    """

    identity: Mapping[str, Any]
    places: tuple[Place, ...]
    slices: int

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return sum(place.rows for place in self.places)

    def bounds(self, number: int) -> Bounds:
        """Return the offsets [low, high) of each source partition in a slice.

        Slices of one partition follow each other, so that rows of one key keep their order.
        """
        return {
            (place.topic, place.partition): (_cut(place, number, self.slices), end)
            for place in self.places
            if (end := _cut(place, number + 1, self.slices)) > _cut(place, number, self.slices)
        }

    def to_json(self) -> str:
        """Return it as the checkpoint keeps it."""
        places = [
            [place.topic, place.partition, place.low, place.high, place.rows]
            for place in self.places
        ]
        plan = {
            "plan_version": PLAN_VERSION,
            "identity": dict(self.identity),
            "slices": self.slices,
            "places": places,
        }
        return json.dumps(plan, indent=1) + "\n"


def make_plan(
    identity: Mapping[str, Any], places: Sequence[Place], *, slice_rows: int
) -> ReplayPlan:
    """Return a plan of slices with about `slice_rows` rows each; none for no rows."""
    rows = sum(place.rows for place in places)
    ordered = sorted(places, key=lambda place: (place.topic, place.partition))
    return ReplayPlan(identity, tuple(ordered), -(-rows // slice_rows))


def read_plan(text: str, where: str) -> ReplayPlan:
    """Return the plan that a checkpoint keeps.

    Raises:
        JobError: it is damaged or of another version; the user must act.
    """
    try:
        kept = json.loads(text)
        if kept["plan_version"] != PLAN_VERSION:
            raise ValueError(f"version {kept['plan_version']}")  # noqa: TRY301 (one handler)
        places = tuple(Place(*each) for each in kept["places"])
        return ReplayPlan(kept["identity"], places, int(kept["slices"]))
    except (ValueError, KeyError, TypeError) as error:
        raise JobError(
            f"{where} is damaged: {error}. Restore it, or begin anew with another --replay-id"
        ) from error


def _cut(place: Place, number: int, slices: int) -> int:
    return place.low + (place.high - place.low) * number // slices

"""What a poll at the dead letters makes of a batch, and what it tells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from halfbridge.serde.errors import DecodeError
from halfbridge.serde.manifest import BatchManifest
from halfbridge.spark_jobs.sink.dead_letters import NO_BATCH, Letter, Poll, Tally
from halfbridge.spark_jobs.sink.errors import CommitInDoubtError, RefusedError
from halfbridge.spark_jobs.sink.options import SinkOptions, parse_options
from halfbridge.spark_jobs.sink.progress import RefusedWatch
from tests.kit.records import A_MANIFEST

GIVEN = {"kafka.bootstrap.servers": "127.0.0.1:1", "app.id": "app", "fail.on.refused": "true"}
EARLIER = A_MANIFEST._replace(
    batch_id=4, refused_count=3, dead_letter_offsets=(7,), dead_letter_topic_id="A"
)


class Topic:
    """A dead-letter topic that was read."""

    def __init__(self, *letters: Letter, topic_id: str = "A") -> None:
        self._letters = letters
        self._topic_id = topic_id

    def dead_letters(self, _: SinkOptions) -> Topic:
        """Return this: it stands for what a process has, too."""
        return self

    def read(self, since: Tally) -> Poll:
        """Return all of them."""
        assert since == Tally(3, (7,), "A")
        return Poll(self._letters, (9,), 0, self._topic_id, is_recreated=self._topic_id != "A")


def watched(
    given: dict[str, str], topic: Topic, winner_of: Callable[[int], BatchManifest | None]
) -> RefusedWatch:
    """Return what watches a topic that was read."""
    return RefusedWatch(parse_options(given), cast("Any", topic), winner_of)


@pytest.mark.parametrize("error", [CommitInDoubtError("no answer"), DecodeError("damaged", None)])
def test_manifests_that_cannot_be_read_fail_no_batch(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """The tally stays where it was, so that the next poll finds the same dead letters."""

    def winner_of(_: int) -> BatchManifest:
        raise error

    watch = watched(GIVEN, Topic(Letter("t", 4, "why")), winner_of)
    assert watch.before([EARLIER]) == Tally(3, (7,), "A")
    assert "counted with a later batch" in caplog.text


@pytest.mark.parametrize("claimed", [NO_BATCH, -5])
def test_what_was_not_looked_up_fails_a_query_that_is_to_fail(claimed: int) -> None:
    """It may be rows that were published: a stub has no batch. Without the option it is told."""
    topic = Topic(Letter("t", claimed, "why"))
    with pytest.raises(RefusedError, match=r"1 transactions .* until one new batch is published"):
        watched(GIVEN, topic, lambda _: EARLIER).before([EARLIER])
    lenient = {**GIVEN, "fail.on.refused": "false"}
    assert watched(lenient, topic, lambda _: EARLIER).before([EARLIER]) == Tally(3, (9,), "A")


def test_a_dead_letter_topic_that_was_made_anew_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """What was deleted with the old one is not known: a query that is to fail fails."""
    topic = Topic(topic_id="B")
    named = r"was deleted and created again \(id A, now B\).* until one new batch"
    with pytest.raises(RefusedError, match=named):
        watched(GIVEN, topic, lambda _: EARLIER).before([EARLIER])
    lenient = {**GIVEN, "fail.on.refused": "false"}
    assert watched(lenient, topic, lambda _: EARLIER).before([EARLIER]) == Tally(3, (9,), "B")
    assert "was deleted and created again" in caplog.text

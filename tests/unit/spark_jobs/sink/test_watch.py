"""What a look at the dead letters makes of a batch, and what it tells."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from halfbridge.serde.errors import DecodeError
from halfbridge.serde.records import BatchManifest
from halfbridge.spark_jobs.sink import watch
from halfbridge.spark_jobs.sink.errors import CommitInDoubtError, RefusedError
from halfbridge.spark_jobs.sink.options import parse_options
from halfbridge.spark_jobs.sink.refused.kafka_io import Look
from halfbridge.spark_jobs.sink.tally import NO_BATCH, Letter, Tally
from halfbridge.spark_jobs.sink.watch import RefusedWatch
from tests.kit.records import A_MANIFEST

if TYPE_CHECKING:
    from collections.abc import Sequence

GIVEN = {"kafka.bootstrap.servers": "127.0.0.1:1", "app.id": "app", "fail.on.refused": "true"}
EARLIER = A_MANIFEST._replace(batch_id=4, refused_count=3, dead_letter_offsets=(7,))


class Topic:
    """A dead-letter topic that was read."""

    def __init__(self, *letters: Letter) -> None:
        self._letters = letters

    def read(self, since: Sequence[int]) -> Look:
        """Return all of them."""
        assert tuple(since) == EARLIER.dead_letter_offsets
        return Look(self._letters, (9,), 0)


@pytest.mark.parametrize("error", [CommitInDoubtError("no answer"), DecodeError("damaged", None)])
def test_manifests_that_cannot_be_read_fail_no_batch(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The tally stays where it was, so that the next look finds the same dead letters."""

    def winner_of(_: int) -> BatchManifest:
        raise error

    topic = Topic(Letter("t", 4, "why"))
    monkeypatch.setattr(watch, "dead_letters_for", lambda _: topic)
    assert RefusedWatch(parse_options(GIVEN), winner_of).before([EARLIER]) == Tally(3, (7,))
    assert "counted with a later batch" in caplog.text


@pytest.mark.parametrize("claimed", [NO_BATCH, -5])
def test_what_was_not_looked_up_fails_a_query_that_is_to_fail(
    claimed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be rows that were published: a stub has no batch. Without the option it is told."""
    topic = Topic(Letter("t", claimed, "why"))
    monkeypatch.setattr(watch, "dead_letters_for", lambda _: topic)
    with pytest.raises(RefusedError, match=r"1 transactions .* until one new batch is published"):
        RefusedWatch(parse_options(GIVEN), lambda _: EARLIER).before([EARLIER])
    lenient = parse_options({**GIVEN, "fail.on.refused": "false"})
    assert RefusedWatch(lenient, lambda _: EARLIER).before([EARLIER]) == Tally(3, (9,))

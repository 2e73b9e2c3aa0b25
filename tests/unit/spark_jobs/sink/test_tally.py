"""Which dead letters are rows that were published, by what manifests list."""

from __future__ import annotations

from halfbridge.serde.avro import DEAD_LETTER, HALF_METADATA, SINK_CONTEXT
from halfbridge.serde.headers import CONTEXT, DEAD, HALF
from halfbridge.serde.manifest import BatchManifest, ManifestAttempt, ManifestTransaction
from halfbridge.serde.records import DeadLetter, DeadReason, SinkContext, new_half
from halfbridge.spark_jobs.sink.dead_letters import (
    CLAIMED_AGE_BATCHES_MAX,
    CLAIMED_BATCHES_MAX,
    NO_BATCH,
    NO_TALLY,
    Letter,
    Refused,
    Tally,
    letter_of,
    newest_tally,
    refused_by,
)
from tests.kit.records import A_MANIFEST


def manifest(batch: int, *transactions: str, tally: Tally = NO_TALLY) -> BatchManifest:
    """Return a manifest of transactions with three messages each."""
    listed = tuple(ManifestTransaction(each, 0, 3, 0) for each in transactions)
    return A_MANIFEST._replace(
        batch_id=batch,
        refused_count=tally.refused_count,
        dead_letter_offsets=tally.offsets,
        dead_letter_topic_id=tally.topic_id,
        attempts=(ManifestAttempt("a", listed),),
    )


def headers(
    app: str | None = "app", group: str = "g", detail: str = "", *, name: str = "t", index: int = 0
) -> list[tuple[str, bytes]]:
    """Return the headers of a dead letter."""
    half = new_half(
        transaction_id=name,
        born_timestamp=0,
        message_index=index,
        producer_group=group,
        real_topic="orders",
        immunity_ms=0,
    )
    letter = DeadLetter(DeadReason.NOT_ALLOWED, detail, 0, 0, 0, "half", 0, 0)
    context = [] if app is None else [(CONTEXT, SINK_CONTEXT.encode(SinkContext(app, 4, "a")))]
    return [*context, (HALF, HALF_METADATA.encode(half)), (DEAD, DEAD_LETTER.encode(letter))]


def test_a_letter_is_of_the_app_or_may_be() -> None:
    """Another group's, another app's and what cannot be read is none."""

    def read(given: list[tuple[str, bytes]] | None) -> Letter | None:
        return letter_of(given, app_id="app", producer_group="g")

    assert read(headers()) == Letter("t", 4, "NOT_ALLOWED")
    assert read(headers(None, detail="policy")) == Letter("t", NO_BATCH, "NOT_ALLOWED: policy")
    for other in (headers("other"), headers(group="h"), [], None, headers()[:2], [(HALF, b"")]):
        assert read(other) is None


def test_a_transaction_counts_once_however_looks_cut_it() -> None:
    """Its dead letters stand in several partitions: the one of message 0 counts for all."""
    winners = {4: manifest(4, "t", "u"), 5: manifest(5), 6: manifest(6)}
    looks = [
        [headers(None, name="t", index=1), headers(name="t")],
        [headers(None, name="t", index=2), headers(name="u")],
        [headers(None, name="u", index=1), headers(None, name="u", index=2)],
    ]
    counted = 0
    for newest, look in enumerate(looks, 4):
        read = (letter_of(each, app_id="app", producer_group="g") for each in look)
        letters = [each for each in read if each is not None]
        refused = refused_by(letters, winners.get, newest_batch=newest)
        assert refused.unverified == 0
        counted += refused.messages
    assert counted == 6


def test_a_transaction_counts_with_all_its_messages_and_once() -> None:
    """The daemon gives a transaction up as a whole; what no manifest lists was never published."""
    winners = {4: manifest(4, "a", "b"), 5: manifest(5, "c")}
    letters = [
        Letter("a", 4, "why"),
        Letter("a", 4, "why"),
        Letter("made up", 4, "x"),
        Letter("c", NO_BATCH, "later"),
    ]
    refused = refused_by(letters, winners.get, newest_batch=5)
    assert refused.by_batch == {4: 3, 5: 3}
    assert refused.messages == 6
    assert refused.unverified == 0


def test_made_up_batches_cost_a_few_searches() -> None:
    """Anybody who may write half messages may name any batch; the rest is told, not counted."""
    asked: list[int] = []

    def winner_of(batch: int) -> None:
        asked.append(batch)

    letters = [Letter(f"{n}", n, "why") for n in range(100)]
    refused = refused_by(letters, winner_of, newest_batch=99)
    assert len(asked) == CLAIMED_BATCHES_MAX
    assert (refused.messages, refused.unverified) == (0, 100 - CLAIMED_BATCHES_MAX)


def test_a_claim_of_long_ago_costs_no_search() -> None:
    """A search for batch 0 would read the whole partition, within the commit of a batch."""
    asked: list[int] = []
    newest = 5_000
    oldest = newest - CLAIMED_AGE_BATCHES_MAX + 1

    def winner_of(batch: int) -> BatchManifest:
        asked.append(batch)
        return manifest(batch, f"{batch}")

    claimed = [-5, 0, oldest - 1, oldest, newest]
    letters = [Letter(f"{batch}", batch, "why") for batch in claimed]
    refused = refused_by(letters, winner_of, newest_batch=newest)
    assert asked == [oldest, newest]
    assert refused.by_batch == {oldest: 3, newest: 3}
    assert refused.unverified == 3


def test_a_batch_that_is_not_published_has_no_refused_rows() -> None:
    """Its driver died and its attempt was given up; now it is run again, and is the next one."""
    winners = {4: manifest(4, "a")}
    refused = refused_by([Letter("t", 5, "why")], winners.get, newest_batch=4)
    assert refused == Refused({}, "", 0)


def test_a_stub_of_an_older_batch_is_told() -> None:
    """It names no batch: whether its transaction was published cannot be looked up."""
    winners = {4: manifest(4, "a"), 5: manifest(5, "b")}
    letters = [Letter("a", NO_BATCH, "why"), Letter("b", NO_BATCH, "why")]
    refused = refused_by(letters, winners.get, newest_batch=5)
    assert refused == Refused({5: 3}, "why", 1)


def test_the_tally_that_came_furthest_counts_on() -> None:
    """A driver that lost the race for a batch has left one too."""
    assert newest_tally([]) == NO_TALLY
    tallies = [Tally(1, (5, 5)), Tally(2, (5, 9)), NO_TALLY]
    assert newest_tally([manifest(1, tally=each) for each in tallies]) == Tally(2, (5, 9))
    tallies = [Tally(2, (5, 9), "A"), Tally(3, (1, 0), "B"), Tally(2, (5, 8), "A")]
    assert newest_tally([manifest(1, tally=each) for each in tallies]) == Tally(3, (1, 0), "B")

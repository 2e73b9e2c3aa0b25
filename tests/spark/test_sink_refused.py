"""Rows that were published and became dead letters: counted, reported, and failing where wanted."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from confluent_kafka import Producer
from prometheus_client import generate_latest

from halfbridge.kafka.admin import AdminClient
from halfbridge.serde.avro import DEAD_LETTER, HALF_METADATA, SINK_CONTEXT
from halfbridge.serde.headers import CONTEXT, DEAD, HALF
from halfbridge.serde.partitioner import partition_of
from halfbridge.serde.records import DeadLetter, DeadReason, OpKind, SinkContext, new_half
from halfbridge.serde.topics import MANIFEST_PARTITIONS
from halfbridge.spark_jobs.sink import dead_letters as refused
from halfbridge.spark_jobs.sink import progress as progress_module
from halfbridge.spark_jobs.sink.attempt import AttemptReport
from halfbridge.spark_jobs.sink.checkpoint import BatchPlan
from halfbridge.spark_jobs.sink.errors import RefusedError, SearchLimitError
from halfbridge.spark_jobs.sink.progress import SinkMetrics, SinkProgress, sink_progress
from tests.spark.real_topic import RealTopic
from tests.spark.sink_parts import Sink
from tests.spark.sink_scene import until

pytestmark = [pytest.mark.spark, pytest.mark.broker]

ROWS = 20


def dead_letter(
    sink: Sink,
    reports: Iterable[AttemptReport],
    *,
    app: str = "feed",
    group: str = "spark-feed",
    with_context: bool = True,
    transactional_id: str = "",
) -> None:
    """Write the dead letters of attempts' transactions, one a transaction, as the daemon does.

    With a transactional id they are of a kafka_txn that is aborted.
    """
    settings = {"bootstrap.servers": sink.scene.servers}
    producer = Producer(
        settings | ({"transactional.id": transactional_id} if transactional_id else {})
    )
    if transactional_id:
        producer.init_transactions(60)
        producer.begin_transaction()
    letter = DeadLetter(DeadReason.NOT_ALLOWED, "policy", 0, 0, 0, "half", 0, 0)
    for report in reports:
        context = SinkContext(app, report.batch_id, report.attempt.attempt_id)
        for each in report.attempt.transactions:
            half = new_half(
                transaction_id=each.transaction_id,
                born_timestamp=0,
                producer_group=group,
                real_topic="orders",
                immunity_ms=0,
            )
            headers = [(HALF, HALF_METADATA.encode(half)), (DEAD, DEAD_LETTER.encode(letter))]
            if with_context:
                headers.insert(0, (CONTEXT, SINK_CONTEXT.encode(context)))
            producer.produce(sink.scene.names.dead, b"v", b"k", headers=headers)
    producer.flush(60)
    if transactional_id:
        producer.abort_transaction(60)


def counts(sink: Sink) -> list[int]:
    """Return what each manifest says of refused messages, in the order of the log."""
    return [each.refused_count for each in sink.scene.manifests()]


@pytest.mark.parametrize("with_context", [True, False])
def test_refused_messages_of_published_batches_are_counted(
    sink: Sink, caplog: pytest.LogCaptureFixture, with_context: bool
) -> None:
    """All of a transaction's, in the manifest of the batch after; a dead letter counts once."""
    first = sink.attempt(rows=ROWS)
    sink.committer.commit(0, [first])
    dead_letter(sink, [first], with_context=with_context)
    sink.committer.commit(1, [sink.attempt(1)])
    sink.committer.commit(2, [sink.attempt(2)])
    assert counts(sink) == [0, ROWS, ROWS]
    assert (
        f"{ROWS} messages ({ROWS} of batch 0) of feed are dead letters (NOT_ALLOWED: policy)"
        in (caplog.text)
    )


def test_what_was_never_published_is_not_refused(sink: Sink) -> None:
    """Attempts that lost, others' messages, and names that somebody made up."""
    first, loser = sink.attempt(rows=ROWS), sink.attempt(rows=ROWS)
    sink.committer.commit(0, [first])
    sink.committer.commit(0, [loser])
    dead_letter(sink, [loser])
    dead_letter(sink, [first], group="spark-other")
    dead_letter(sink, [first], app="another-of-the-group")
    dead_letter(sink, [first], transactional_id=f"{sink.scene.prefix}aborted")
    made_up = [replace(loser, batch_id=batch) for batch in range(100, 200)]
    dead_letter(sink, made_up)
    sink.committer.commit(1, [sink.attempt(1)])
    assert counts(sink) == [0, 0]


def test_the_first_batch_counts_nothing_of_the_past(sink: Sink) -> None:
    """It begins where the dead-letter topic ends: what an app of this name had is not its."""
    dead_letter(sink, [sink.attempt(rows=ROWS)])
    sink.committer.commit(0, [sink.attempt()])
    (manifest,) = sink.scene.manifests()
    assert manifest.refused_count == 0
    assert sum(manifest.dead_letter_offsets) > 0


def test_a_dead_letter_topic_that_was_made_anew_is_counted_from_its_beginning(
    sink: Sink, caplog: pytest.LogCaptureFixture
) -> None:
    """Its first dead letters have offsets that were read of the old topic."""
    first = sink.attempt(rows=ROWS)
    dead_letter(sink, [first, first])
    sink.committer.commit(0, [first])
    RealTopic(sink.scene.servers, sink.scene.names.dead).make_anew()
    dead_letter(sink, [first])
    sink.committer.commit(1, [sink.attempt(1)])
    sink.committer.commit(2, [sink.attempt(2)])
    assert counts(sink) == [0, ROWS, ROWS]
    assert f"{sink.scene.names.dead} was deleted and created again" in caplog.text


def test_progress_is_read_from_the_manifests(sink: Sink) -> None:
    """By any process: the newest batch, its rows, and what was refused of those before it."""
    options = sink.scene.options()
    assert sink_progress(options) == SinkProgress("feed")
    first = sink.attempt(rows=ROWS)
    sink.committer.commit(0, [first])
    dead_letter(sink, [first])
    sink.committer.commit(1, [sink.attempt(1, rows=7)])
    progress = sink_progress(options)
    assert (progress.batch_id, progress.row_count, progress.refused_count) == (1, 7, ROWS)
    shown = generate_latest(SinkMetrics([options, {**options, "app.id": "a b"}])).decode()
    assert 'halfbridge_spark_sink_refused_messages_total{app="feed"} 20.0' in shown
    assert 'halfbridge_spark_sink_batch_id{app="feed"} 1.0' in shown
    assert 'halfbridge_spark_sink_lookup_ok{app="a b"} 0.0' in shown


def test_progress_is_the_winners(sink: Sink) -> None:
    """A driver that came second, or too late, has left a COMMIT with other numbers."""
    options = sink.scene.options()
    sink.committer.commit(0, [sink.attempt(rows=3)])
    (published,) = sink.scene.manifests()
    log = sink.process.log(sink.options)
    log.append(published._replace(row_count=50, searched_from=0))
    assert sink_progress(options).row_count == 3
    log.append(published._replace(batch_id=1, row_count=60, first_append_timestamp=1))
    progress = sink_progress(options)
    assert (progress.batch_id, progress.row_count) == (0, 3)


def test_a_scrape_reads_so_far_back_only(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    """An app without a batch would read the whole partition each time, and a damaged one fails."""
    options = sink.scene.options()
    log = sink.process.log(sink.options)
    sink.committer.commit(0, [sink.attempt()])
    monkeypatch.setattr(progress_module, "RECORDS_MAX", 3)
    assert sink_progress(options).batch_id == 0
    names = (f"other-{n}" for n in range(1_000))
    partition = partition_of(b"feed", MANIFEST_PARTITIONS)
    neighbours = [n for n in names if partition_of(n.encode(), MANIFEST_PARTITIONS) == partition]
    (published,) = sink.scene.manifests()
    for name in neighbours[:4]:
        log.append(published._replace(app_id=name, searched_from=0))
    with pytest.raises(SearchLimitError, match="newest 3 records"):
        sink_progress(options)
    shown = generate_latest(SinkMetrics([options])).decode()
    assert 'halfbridge_spark_sink_lookup_ok{app="feed"} 0.0' in shown


def test_a_damaged_manifest_fails_no_scrape(sink: Sink) -> None:
    """Metrics of the other apps are shown, and those of the process that shows them."""
    sink.committer.commit(0, [sink.attempt()])
    producer = Producer({"bootstrap.servers": sink.scene.servers})
    partition = partition_of(b"feed", MANIFEST_PARTITIONS)
    producer.produce(sink.scene.names.manifest, b"damaged", b"feed", partition)
    producer.flush(60)
    shown = generate_latest(SinkMetrics([sink.scene.options()])).decode()
    assert 'halfbridge_spark_sink_lookup_ok{app="feed"} 0.0' in shown


def test_a_query_that_is_to_fail_does_so_before_its_next_batch(sink: Sink) -> None:
    """It fails until somebody has said to go on, and then of new ones only."""
    sink.options = replace(sink.options, fails_on_refused=True)
    first, second = sink.attempt(rows=ROWS), sink.attempt(1)
    sink.committer.commit(0, [first])
    dead_letter(sink, [first])
    for _ in range(2):
        with pytest.raises(RefusedError, match=rf"{ROWS} messages \({ROWS} of batch 0\)"):
            sink.committer.commit(1, [second])
    assert sink.decided(second) == {OpKind.ROLLBACK}

    sink.options = replace(sink.options, fails_on_refused=False)
    sink.committer.commit(1, [sink.attempt(1)])
    sink.options = replace(sink.options, fails_on_refused=True)
    third = sink.attempt(2)
    sink.committer.commit(2, [third])
    assert sink.decided(third) == {OpKind.COMMIT}
    assert counts(sink) == [0, ROWS, ROWS]


def test_a_poll_is_bounded(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    """A neighbour's dead letters hold a batch up for a moment; the next one continues there."""
    first = sink.attempt(rows=ROWS)
    sink.committer.commit(0, [first])
    dead_letter(sink, [first] * 30, group="spark-neighbour")
    dead_letter(sink, [first])
    letters = len(sink.scene.read(sink.scene.names.dead))
    monkeypatch.setattr(refused, "POLL_RECORDS_MAX", 10)
    monkeypatch.setattr(refused, "_READ_MAX", 10)
    batch = 0
    while not counts(sink)[-1]:
        batch += 1
        sink.committer.commit(batch, [sink.attempt(batch, rows=1)])
        assert batch <= letters
    assert counts(sink)[-1] == ROWS
    assert batch > 1


def test_without_the_topic_it_says_so_once(sink: Sink, caplog: pytest.LogCaptureFixture) -> None:
    """As without the right to see it: nothing is counted, and batches are published."""
    admin = AdminClient({"bootstrap.servers": sink.scene.servers})
    admin.delete_topics([sink.scene.names.dead])[sink.scene.names.dead].result(20)
    until("the topic is gone", lambda: sink.scene.names.dead not in sink.scene.topics())
    for batch in range(2):
        sink.committer.commit(batch, [sink.attempt(batch)])
    assert [each.dead_letter_offsets for each in sink.scene.manifests()] == [(), ()]
    assert caplog.text.count("are not counted") == 1


def test_a_daemon_whose_policy_refuses_the_rows(sink: Sink) -> None:
    """A batch write that waits for its delivery fails; with the option to continue it does not."""
    policy = sink.scene.directory / "policy.toml"
    policy.write_text(f'default = "deny"\n[groups]\n"spark-feed" = ["{sink.scene.fixes}"]\n')
    sink.scene.daemon("--policy-file", str(policy))
    sink.options = replace(sink.options, fails_on_refused=True, refused_wait_ms=60_000, batch_id=1)
    with pytest.raises(RefusedError, match="NOT_ALLOWED"):
        sink.committer.commit(1, [sink.attempt(1, rows=ROWS)])
    sink.options = replace(sink.options, fails_on_refused=False)
    sink.committer.commit(1, [sink.attempt(1, rows=ROWS)])  # found published
    allowed = [sink.write([(b"k", b"v")], batch=batch, topic=sink.scene.fixes) for batch in (2, 3)]
    sink.committer.commit(2, [allowed[0]])
    sink.options = replace(sink.options, fails_on_refused=True)
    sink.committer.commit(3, [allowed[1]])
    assert counts(sink) == [0, ROWS, ROWS]
    assert len(sink.scene.read(sink.scene.fixes)) == len(allowed)


def test_a_daemon_that_is_down_holds_a_batch_up_for_so_long_only(
    sink: Sink, caplog: pytest.LogCaptureFixture
) -> None:
    """Delivery is later then, and so is the count."""
    sink.options = replace(sink.options, refused_wait_ms=300)
    sink.committer.commit(0, [sink.attempt()], BatchPlan("query", "a1"))
    assert "counted with a later batch" in caplog.text

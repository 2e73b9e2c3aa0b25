"""Attempts and commits without a session: what is published, once, and what never is."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition

from halfbridge.kafka.admin import AdminClient
from halfbridge.serde.avro import SINK_CONTEXT
from halfbridge.serde.headers import CONTEXT, INTERNAL, parse_half
from halfbridge.serde.manifest import BATCH_MANIFEST, BatchManifest
from halfbridge.serde.records import OpKind, SinkContext
from halfbridge.serde.topics import MANIFEST_PARTITIONS
from halfbridge.spark_jobs.sink.clients import ensure_topics
from halfbridge.spark_jobs.sink.errors import (
    AttemptGivenUpError,
    BatchOrderError,
    ReplayMismatchError,
    SinkSetupError,
    UnknownPastError,
)
from tests.spark.sink_parts import ROWS, Sink, sink_parts
from tests.spark.sink_scene import HALF_PARTITIONS

pytestmark = [pytest.mark.spark, pytest.mark.broker]


def test_half_records_say_whose_they_are(sink: Sink) -> None:
    """The first of each transaction has the context; no other, and none of it is delivered."""
    report = sink.attempt(batch=3)
    counts: dict[str, int] = {}
    for record in sink.scene.read(sink.scene.names.half):
        metadata, flaw = parse_half(record.headers)
        assert not flaw
        assert metadata.message_index == counts.get(metadata.transaction_id, 0)
        counts[metadata.transaction_id] = metadata.message_index + 1
        contexts = [value for name, value in record.headers if name == CONTEXT]
        wanted = SINK_CONTEXT.encode(SinkContext("feed", 3, report.attempt.attempt_id))
        assert contexts == ([wanted] if not metadata.message_index else [])
        assert {name for name, _ in record.headers} <= set(INTERNAL)
    assert counts == {
        each.transaction_id: each.message_count for each in report.attempt.transactions
    }


def test_a_commit_may_be_repeated(sink: Sink, caplog: pytest.LogCaptureFixture) -> None:
    """With the same attempts, with others of the same rows, not with other rows.

    A driver says in one line what was published by one before it.
    """
    first, again = sink.attempt(), sink.attempt()
    other = sink.attempt(first=1)
    sink.committer.commit(0, [first])
    sink.committer.commit(0, [first])
    assert caplog.messages == []
    sink.committer.commit(0, [again])
    (line,) = caplog.messages
    assert line.startswith("batch 0 of feed was published before this run, by ")
    count = len(first.attempt.transactions)
    assert f"its {ROWS} rows in {count} transactions are settled" in line
    with pytest.raises(ReplayMismatchError, match="40 rows"):
        sink.committer.commit(0, [other])
    assert len(sink.scene.manifests()) == 1
    assert (sink.decided(first), sink.decided(again)) == ({OpKind.COMMIT}, {OpKind.ROLLBACK})
    assert sink.decided(other) == {OpKind.ROLLBACK}


def test_an_attempt_that_two_commits_list_is_not_rolled_back(sink: Sink) -> None:
    """Only what the winner does not list is lost."""
    both, one, other = sink.attempt(), sink.attempt(first=ROWS), sink.attempt(first=ROWS)
    sink.committer.record(0, [both, one])
    sink.committer.commit(0, [both, other])
    assert sink.decided(both) == sink.decided(one) == {OpKind.COMMIT}
    assert sink.decided(other) == {OpKind.ROLLBACK}


def test_a_winner_that_another_driver_left_is_settled(sink: Sink) -> None:
    """Its driver may never come back: also by a commit with other rows, which fails."""
    first, other = sink.attempt(), sink.attempt(first=1)
    sink.committer.record(0, [first])
    with pytest.raises(ReplayMismatchError):
        sink.committer.commit(0, [other])
    assert (sink.decided(first), sink.decided(other)) == ({OpKind.COMMIT}, {OpKind.ROLLBACK})


def test_an_abort_settles_what_another_driver_left(sink: Sink) -> None:
    """But not what its own commit left: the query is failing, and started again it settles that."""
    first, other = sink.attempt(), sink.attempt()
    sink.committer.record(0, [first])
    sink.committer.abort(0, [first])
    assert sink.decided(first) == {None}
    sink.committer.abort(0, [other])
    assert (sink.decided(first), sink.decided(other)) == ({OpKind.COMMIT}, {OpKind.ROLLBACK})


@pytest.mark.parametrize(
    ("name", "value"), [("retention.ms", "1000000"), ("message.timestamp.type", "CreateTime")]
)
def test_a_manifest_topic_that_forgets_is_refused(sink: Sink, name: str, value: str) -> None:
    """With the command that mends it, when a query begins and before anything is published."""
    sink.alter(sink.scene.names.manifest, name, value)
    with pytest.raises(SinkSetupError, match=f"--set {name}="):
        ensure_topics(sink.options, sink.process.ports)
    with pytest.raises(SinkSetupError, match=f"--set {name}="):
        sink.committer.commit(0, [sink.attempt()])


def test_a_search_decodes_the_attempts_of_its_own_batch_only(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a day's batches would take all memory there is."""
    for batch in range(3):
        sink.committer.commit(batch, [sink.attempt(batch=batch)])
    decoded: list[int] = []
    decode = BATCH_MANIFEST.decode

    def counted(data: bytes) -> BatchManifest:
        decoded.append(decode(data).batch_id)
        return decode(data)

    monkeypatch.setattr(BATCH_MANIFEST, "decode", counted)
    found = sink.committer.find(1)
    assert decoded == [1]
    assert [len(each.manifest.attempts) for each in found.entries] == [1]
    assert (found.earlier_batch, found.later_batch) == (0, 2)


def test_foreign_records_and_markers_are_passed_over(sink: Sink) -> None:
    """The last offset may be a transaction marker, which no consumer is handed."""
    servers = {"bootstrap.servers": sink.scene.servers}
    producer = Producer({**servers, "transactional.id": sink.scene.prefix})
    producer.init_transactions(60)
    producer.begin_transaction()
    for partition in range(MANIFEST_PARTITIONS):
        producer.produce(sink.scene.names.manifest, b"no manifest", b"other", partition)
    producer.commit_transaction(60)
    report = sink.attempt()
    sink.committer.commit(0, [report])
    sink.committer.commit(0, [sink.attempt()])
    assert sink.decided(report) == {OpKind.COMMIT}


def test_a_record_without_a_value_is_passed_over(sink: Sink) -> None:
    """Under the app's own key, too: it is no manifest, and stops no query."""
    producer = Producer({"bootstrap.servers": sink.scene.servers})
    for partition in range(MANIFEST_PARTITIONS):
        producer.produce(sink.scene.names.manifest, None, sink.options.app_id, partition)
    assert producer.flush(60) == 0
    report = sink.attempt()
    sink.committer.commit(0, [report])
    sink.committer.commit(0, [sink.attempt()])
    assert sink.decided(report) == {OpKind.COMMIT}


def test_batches_that_go_back_are_refused(sink: Sink) -> None:
    """One that was never published cannot be once a later one was."""
    sink.options = replace(sink.options, batch_id=5)  # writes: a stream would not get so far
    sink.committer.commit(5, [sink.attempt(5)])
    late = sink.attempt(4)
    with pytest.raises(BatchOrderError, match="batch 5 was"):
        sink.committer.commit(4, [late])
    assert sink.decided(late) == {OpKind.ROLLBACK}


def test_a_stream_whose_past_is_unknown_is_refused(sink: Sink) -> None:
    """Its manifests may be under another prefix or cluster: it could be published a second time."""
    report = sink.attempt(7)
    with pytest.raises(UnknownPastError, match=r"the option first\.batch to 7"):
        sink.committer.commit(7, [report])
    assert (sink.decided(report), sink.scene.manifests()) == ({OpKind.ROLLBACK}, [])
    sink.committer.commit(0, [sink.attempt()])
    with pytest.raises(UnknownPastError, match="knows none later than 0"):
        sink.committer.commit(7, [sink.attempt(7)])

    sink.options = replace(sink.options, first_batch=7)
    first, second = sink.attempt(7), sink.attempt(8)
    sink.committer.commit(7, [first])
    sink.committer.commit(8, [second])
    assert sink.decided(first) == sink.decided(second) == {OpKind.COMMIT}


def test_a_batch_that_was_given_up_is_run_anew(sink: Sink) -> None:
    """Its void COMMIT ends the search, and covers the batch before."""
    sink.committer.commit(0, [sink.attempt()])
    late = sink.attempt(1)
    for _ in range(2):
        with pytest.raises(AttemptGivenUpError):
            sink.committer.commit(1, [replace(late, first_append_timestamp=1)])
    anew = sink.attempt(1)
    sink.committer.commit(1, [anew])
    assert sink.decided(anew) == {OpKind.COMMIT}


def test_a_batch_write_has_any_number(sink: Sink) -> None:
    """Its user chose it: nothing says that there was one before."""
    sink.options = replace(sink.options, batch_id=7)
    report = sink.attempt(7)
    sink.committer.commit(7, [report])
    assert sink.decided(report) == {OpKind.COMMIT}


def test_an_aborted_attempt_is_never_published(sink: Sink) -> None:
    """Not even by a commit that comes late; the batch that is run again is."""
    report, anew = sink.attempt(), sink.attempt()
    sink.committer.abort(0, [report])
    with pytest.raises(AttemptGivenUpError, match="Start the query again"):
        sink.committer.commit(0, [report])
    sink.committer.commit(0, [anew])
    assert (sink.decided(report), sink.decided(anew)) == ({OpKind.ROLLBACK}, {OpKind.COMMIT})


def test_an_abort_after_the_commit_takes_nothing_back(sink: Sink) -> None:
    """Spark aborts when anything behind the commit fails."""
    report, loser = sink.attempt(), sink.attempt()
    sink.committer.commit(0, [report])
    sink.committer.abort(0, [report, loser])
    assert (sink.decided(report), sink.decided(loser)) == ({OpKind.COMMIT}, {OpKind.ROLLBACK})


def test_a_batch_that_took_too_long_is_void(sink: Sink) -> None:
    """Its half messages may have been given up: it is run again, rather than published in part."""
    report = sink.attempt()
    old = replace(report, first_append_timestamp=report.first_append_timestamp - 86_400_001)
    with pytest.raises(AttemptGivenUpError):
        sink.committer.commit(0, [old])
    assert sink.decided(report) == {OpKind.ROLLBACK}


def test_the_batch_before_comes_out_before(sink: Sink) -> None:
    """Its driver died behind the manifest, and nobody repeated it: older rows would come later."""
    first, second = sink.attempt(0), sink.attempt(1, first=1)
    sink.committer.record(0, [first])
    sink.committer.commit(1, [second])
    assert sink.decided(first) == {OpKind.COMMIT}
    for partition in range(HALF_PARTITIONS):
        order = [transaction for transaction, _ in sink.scene.ops(partition)]
        older = [
            order.index(each.transaction_id)
            for each in first.attempt.transactions
            if each.half_partition == partition
        ]
        newer = [
            order.index(each.transaction_id)
            for each in second.attempt.transactions
            if each.half_partition == partition
        ]
        assert max(older, default=-1) < min(newer, default=len(order))


def test_a_manifest_that_is_too_large(
    kafka_bootstrap_servers: str, topic_prefix: str, tmp_path: Path
) -> None:
    """It is refused before anything is published; the error prints the command that helps."""
    with sink_parts(kafka_bootstrap_servers, topic_prefix, tmp_path) as sink:
        sink.alter(sink.scene.names.manifest, "max.message.bytes", "2000")
        reports = [sink.attempt(rows=2_000)]
        with pytest.raises(SinkSetupError) as refused:
            sink.committer.commit(0, reports)
        assert sink.scene.manifests() == []

        command = str(refused.value).split("Run: halfbridge ")[1].split(" and start")[0]
        subprocess.run([sys.executable, "-m", "halfbridge", *command.split()], check=True)
        sink.committer.commit(0, reports)
        assert sink.decided(reports[0]) == {OpKind.COMMIT}


def test_manifests_are_compressed(
    kafka_bootstrap_servers: str, topic_prefix: str, tmp_path: Path
) -> None:
    """They are kept for ever: the broker takes one that is larger than its limit before that."""
    with sink_parts(kafka_bootstrap_servers, topic_prefix, tmp_path) as sink:
        sink.committer.commit(0, [sink.attempt()])
        sink.alter(sink.scene.names.manifest, "max.message.bytes", "6000")
        report = sink.attempt(1, rows=2_000)
        sink.committer.commit(1, [report])
        assert sink.decided(report) == {OpKind.COMMIT}
        assert len(BATCH_MANIFEST.encode(sink.scene.manifests()[1])) > 7_000


def test_a_manifest_topic_that_lost_its_beginning(sink: Sink) -> None:
    """An app that is not known any more is refused; one that is known continues."""
    for batch in range(3):
        sink.committer.commit(batch, [sink.attempt(batch)])
    admin = AdminClient({"bootstrap.servers": sink.scene.servers})
    (partition,) = {each.partition for each in sink.scene.read(sink.scene.names.manifest)}
    where = TopicPartition(sink.scene.names.manifest, partition, 2)
    for deleted in admin.delete_records([where]).values():
        deleted.result(20)
    sink.committer.commit(3, [sink.attempt(3)])
    with pytest.raises(SinkSetupError, match="that was never used"):
        sink.committer.commit(0, [sink.attempt(0)])

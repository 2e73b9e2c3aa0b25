"""Attempts, commits and answers without a session, where the brokers or the clock go wrong."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier, BrokenBarrierError, Event
from time import monotonic, time_ns
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from bridge import MessageView, Resolution
from halfbridge.spark.checker import NotOfTheSinkError, SinkChecker, StillOpenError
from halfbridge.testkit.broker import EmbeddedBroker
from halfbridge.testkit.cluster import EmbeddedCluster
from halfbridge.testkit.proxy import Act, Api, Rule
from halfbridge.testkit.reader import read_ops
from serde.avro import SINK_CONTEXT
from serde.headers import CONTEXT, INTERNAL, parse_half
from serde.partitioner import partition_of
from serde.records import ManifestKind, OpKind, SinkContext
from serde.topics import MANIFEST_PARTITIONS
from spark_jobs.sink.cluster.kafka_io import ensure_topics
from spark_jobs.sink.errors import (
    AttemptGivenUpError,
    BatchOrderError,
    CommitInDoubtError,
    ReplayMismatchError,
    SendError,
    SinkSetupError,
)
from spark_jobs.sink.manifest import Fate, rounds
from spark_jobs.sink.sender.kafka_io import decide
from tests.inferred import INFERRED
from tests.spark.sink_parts import ROWS, Sink, sink_parts
from tests.spark.sink_scene import HALF_PARTITIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from serde.records import ManifestTransaction
    from spark_jobs.sink.attempt import AttemptReport

pytestmark = [pytest.mark.spark, pytest.mark.broker]

_INVALID_RECORD = 87  # Kafka's code
_FIVE_WINDOWS = 40_000  # records: 64, 8 times as many each time
_CALL_S = 20.0
_ALONE_S = 1.0  # in which another thread would have come by


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


def test_a_commit_may_be_repeated(sink: Sink) -> None:
    """With the same attempts, with others of the same rows, not with other rows."""
    first, again = sink.attempt(), sink.attempt()
    other = sink.attempt(first=1)
    sink.committer.commit(0, [first])
    sink.committer.commit(0, [first])
    sink.committer.commit(0, [again])
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
    with pytest.raises(SinkSetupError, match=f"--add-config {name}="):
        ensure_topics(sink.options)
    with pytest.raises(SinkSetupError, match=f"--add-config {name}="):
        sink.committer.commit(0, [sink.attempt()])


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


def test_batches_that_go_back_are_refused(sink: Sink) -> None:
    """One that was never published cannot be once a later one was."""
    sink.committer.commit(5, [sink.attempt(5)])
    late = sink.attempt(4)
    with pytest.raises(BatchOrderError, match="batch 5 was"):
        sink.committer.commit(4, [late])
    assert sink.decided(late) == {OpKind.ROLLBACK}


def test_an_aborted_attempt_is_never_published(sink: Sink) -> None:
    """Not even by a commit that comes late; the batch run anew is."""
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
    """Its half messages may have been given up: it is run anew, rather than published in part."""
    report = sink.attempt()
    old = replace(report, first_append_timestamp=report.first_append_timestamp - 86_400_001)
    with pytest.raises(AttemptGivenUpError):
        sink.committer.commit(0, [old])
    assert sink.decided(report) == {OpKind.ROLLBACK}


def view(
    report: AttemptReport, *, batch: int = 0, age_ms: int = 0, context: bool = True
) -> MessageView:
    """Return a check of an attempt's first transaction."""
    told = SINK_CONTEXT.encode(SinkContext("feed", batch, report.attempt.attempt_id))
    return MessageView(
        topic="orders",
        partition=None,
        key=None,
        value=b"",
        headers=(),
        transaction_id=report.attempt.transactions[0].transaction_id,
        check_number=1,
        attempt=1,
        born_timestamp=time_ns() // 1_000_000 - age_ms,
        producer_group="spark-feed",
        resume_count=0,
        context=told if context else None,
    )


def test_checks_are_answered_from_the_log(sink: Sink) -> None:
    """Open: no answer, so none counts. Published: all its decisions first, in order. Else not."""
    report, loser = sink.attempt(), sink.attempt()
    checker = SinkChecker(sink.options)
    with pytest.raises(StillOpenError, match="no manifest yet"):
        checker(view(report))
    with pytest.raises(NotOfTheSinkError):
        checker(view(report, context=False))
    sink.committer.record(0, [report])
    assert sink.scene.undecided()
    assert checker(view(report)) is Resolution.COMMIT
    assert sink.decided(report) == {OpKind.COMMIT}
    assert checker(view(loser)) is Resolution.ROLLBACK
    mine = {each.transaction_id for each in report.attempt.transactions}
    for partition in range(2):
        order = [
            each.transaction_id
            for each in report.attempt.transactions
            if each.half_partition == partition
        ]
        assert [id_ for id_, _ in sink.scene.ops(partition) if id_ in mine] == order


def test_a_responder_remembers_ids_only(sink: Sink) -> None:
    """A manifest may have megabytes, and it remembers the batches of an hour."""
    report, loser = sink.attempt(), sink.attempt()
    sink.committer.record(0, [report])
    checker = SinkChecker(sink.options)
    assert checker(view(report)) is Resolution.COMMIT
    assert list(checker._settled.values()) == [{report.attempt.attempt_id}]
    assert checker(view(report)) is Resolution.COMMIT
    assert checker(view(loser)) is Resolution.ROLLBACK


def test_what_nobody_commits_is_given_up_in_the_log(sink: Sink) -> None:
    """After the app's own maximum; a commit that comes later finds it, and the batch runs anew."""
    report = sink.attempt()
    checker = SinkChecker(sink.options)
    assert checker(view(report, age_ms=86_400_001)) is Resolution.ROLLBACK
    assert [each.kind for each in sink.scene.manifests()] == [ManifestKind.REJECT]
    with pytest.raises(AttemptGivenUpError):
        sink.committer.commit(0, [report])
    sink.committer.commit(0, [sink.attempt()])


def test_halves_that_the_brokers_refuse(sink: Sink) -> None:
    """The attempt fails; the next one is as new."""
    sink.attempt()  # its client knows the larger limit
    sink.alter(sink.scene.names.half, "max.message.bytes", "200")
    with pytest.raises(SendError):
        sink.attempt()
    sink.alter(sink.scene.names.half, "max.message.bytes", "1048588")
    sink.committer.commit(0, [sink.attempt()])
    assert OpKind.COMMIT in sink.scene.decisions().values()


def test_what_a_failed_attempt_has_stored_is_rolled_back(topic_prefix: str, tmp_path: Path) -> None:
    """All of it, though nobody has told where it stands."""
    with (
        EmbeddedCluster(1, proxied=True) as cluster,
        sink_parts(cluster.proxied_servers, topic_prefix, tmp_path) as sink,
    ):
        cluster.proxy.add(INFERRED)
        with pytest.raises(SendError):
            sink.attempt()
        last = {
            parse_half(each.headers)[0].transaction_id: each.offset
            for each in sink.scene.read(sink.scene.names.half)
        }
        ops = read_ops(sink.scene.read(sink.scene.names.op))
        assert {each.op.kind for each in ops} == {OpKind.ROLLBACK}
        assert {each.op.transaction_id for each in ops} == last.keys()
        assert all(each.op.half_offset >= last[each.op.transaction_id] for each in ops)


def test_a_failure_is_told_to_whom_it_happened(topic_prefix: str, tmp_path: Path) -> None:
    """Responders of several apps share a client: who waits for it gets another when it failed."""
    with (
        EmbeddedCluster(1, proxied=True) as cluster,
        sink_parts(cluster.proxied_servers, topic_prefix, tmp_path) as sink,
    ):
        first, second = sink.attempt(), sink.attempt(1)
        winner = sink.committer.record(0, [first])
        begun, waiting = Event(), Event()

        def slow() -> Iterator[list[ManifestTransaction]]:
            begun.set()
            assert waiting.wait(_CALL_S)
            cluster.proxy.add(INFERRED)
            yield from rounds(winner.attempts)

        def decided(cut: Iterable[list[ManifestTransaction]]) -> None:
            group = sink.options.producer_group
            decide(sink.options, OpKind.COMMIT, cut, producer_group=group, timeout_s=_CALL_S)

        with ThreadPoolExecutor(2) as threads:
            fails = threads.submit(decided, slow())
            assert begun.wait(_CALL_S)
            succeeds = threads.submit(decided, rounds([second.attempt]))
            waiting.set()
        assert isinstance(fails.exception(), CommitInDoubtError)
        assert succeeds.exception() is None
        assert sink.decided(second) == {OpKind.COMMIT}


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


def test_a_rollback_asks_once_where_a_half_partition_ends(
    topic_prefix: str, tmp_path: Path
) -> None:
    """However many transactions the brokers refused: each question costs a client a connection."""
    with (
        EmbeddedCluster(1, proxied=True) as cluster,
        sink_parts(cluster.proxied_servers, topic_prefix, tmp_path) as sink,
    ):
        stored = sink.attempt()
        sink.alter(sink.scene.names.half, "max.message.bytes", "1000")
        cluster.proxy.add(Rule(api=Api.LIST_OFFSETS, act=Act.HOLD))
        with pytest.raises(SendError):
            sink.attempt(rows=10 * ROWS)
        asked = cluster.proxy.hits(Act.HOLD, Api.LIST_OFFSETS)
        assert 0 < asked <= 2 * HALF_PARTITIONS  # for the beginning and for the end
        assert sink.scene.undecided() == {
            each.transaction_id for each in stored.attempt.transactions
        }


def test_a_manifest_that_is_too_large(
    kafka_bootstrap_servers: str, topic_prefix: str, tmp_path: Path
) -> None:
    """Said before anything is published, with what to do; once that is done, it is published."""
    with sink_parts(kafka_bootstrap_servers, topic_prefix, tmp_path) as sink:
        sink.alter(sink.scene.names.manifest, "max.message.bytes", "2000")
        reports = [sink.attempt(rows=2_000)]
        with pytest.raises(SinkSetupError, match=r"--add-config max\.message\.bytes=(\d+)") as told:
            sink.committer.commit(0, reports)
        assert sink.scene.manifests() == []

        wanted = str(told.value).split("max.message.bytes=")[1].split()[0]
        sink.alter(sink.scene.names.manifest, "max.message.bytes", wanted)
        sink.committer.commit(0, reports)
        assert sink.decided(reports[0]) == {OpKind.COMMIT}


def test_a_manifest_topic_that_lost_its_beginning(sink: Sink) -> None:
    """An app that is not known any more is refused; one that is known goes on."""
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


def test_no_decision_overtakes_one_that_may_not_be_stored(
    topic_prefix: str, tmp_path: Path
) -> None:
    """An acknowledgement without an offset proves nothing: what comes behind it waits.

    Written again after the ones behind it, it would take its rows behind later ones of their keys.
    """
    with (
        EmbeddedCluster(1, proxied=True) as cluster,
        sink_parts(cluster.proxied_servers, topic_prefix, tmp_path) as sink,
    ):
        report = sink.attempt()
        winner = sink.committer.record(0, [report])
        cluster.proxy.add(INFERRED)
        with pytest.raises(CommitInDoubtError):
            sink.committer.settle(winner)
        assert cluster.proxy.hits(Act.FAIL, Api.PRODUCE) == 1
        firsts, *others = rounds([report.attempt])
        assert others
        decided = set(sink.scene.decisions())
        assert decided <= {each.transaction_id for each in firsts}
        sink.committer.settle(winner)
        assert sink.decided(report) == {OpKind.COMMIT}


def test_responders_of_one_process_decide_one_after_the_other(sink: Sink) -> None:
    """They share a client, whose failure would be told to the wrong one."""
    together = Barrier(2)

    def no_rounds() -> Iterator[list[ManifestTransaction]]:
        together.wait(_ALONE_S)
        yield []

    def alone() -> None:
        group = sink.options.producer_group
        decide(sink.options, OpKind.ROLLBACK, no_rounds(), producer_group=group, timeout_s=_CALL_S)

    with ThreadPoolExecutor(2) as threads:
        both = [threads.submit(alone) for _ in range(2)]
    assert [type(each.exception()) for each in both] == [BrokenBarrierError] * 2


def test_a_manifest_that_is_refused_spoils_nothing(topic_prefix: str, tmp_path: Path) -> None:
    """A responder lives long: after a refusal its client takes no more, and it gets another."""
    with (
        EmbeddedCluster(1, proxied=True) as cluster,
        sink_parts(cluster.proxied_servers, topic_prefix, tmp_path) as sink,
    ):
        first, second = sink.attempt(), sink.attempt()
        cluster.proxy.add(Rule(api=Api.PRODUCE, act=Act.FAIL, error=_INVALID_RECORD, times=1))
        with pytest.raises(CommitInDoubtError):
            sink.committer.reject(0, first.attempt.attempt_id, "too old")
        assert cluster.proxy.hits(Act.FAIL, Api.PRODUCE) == 1
        sink.committer.reject(0, second.attempt.attempt_id, "too old")
        assert sink.fate(second) is Fate.ROLLBACK


def test_a_long_log_may_be_read_for_long(topic_prefix: str, tmp_path: Path) -> None:
    """A new app reads all of its partition; its time-out is on brokers that say nothing."""
    with (
        EmbeddedCluster(1, proxied=True) as cluster,
        sink_parts(
            cluster.proxied_servers, topic_prefix, tmp_path, commit_timeout_ms="3000"
        ) as sink,
    ):
        partition = partition_of(sink.options.app_id.encode(), MANIFEST_PARTITIONS)
        producer = Producer({"bootstrap.servers": cluster.proxied_servers})
        for _ in range(_FIVE_WINDOWS):
            producer.produce(sink.scene.names.manifest, b"", b"other", partition)
        assert producer.flush(60) == 0
        sink.committer.find(0)  # clients are made
        cluster.proxy.delay(300)
        began = monotonic()
        assert sink.committer.find(0).entries == ()
        assert monotonic() - began > 3


@pytest.mark.spark_long
def test_brokers_that_do_not_answer(topic_prefix: str, tmp_path: Path) -> None:
    """A commit in doubt: whether its manifest came through or not, all agree afterwards."""
    with (
        EmbeddedBroker() as broker,
        sink_parts(
            broker.bootstrap_servers, topic_prefix, tmp_path, commit_timeout_ms="3000"
        ) as hasty,
    ):
        hasty.committer.commit(0, [hasty.attempt()])  # clients are made
        report, anew = hasty.attempt(1), hasty.attempt(1)
        broker.pause()
        with pytest.raises(CommitInDoubtError):
            hasty.committer.commit(1, [report])
        broker.resume()
        sink = Sink(hasty.scene)  # with time enough from here on
        sink.committer.abort(1, [report])
        sink.committer.commit(1, [anew])
        fates = {sink.fate(report, 1), sink.fate(anew, 1)}
        assert fates == {Fate.COMMIT, Fate.ROLLBACK}
        for each in (report, anew):
            assert {kind.value for kind in sink.decided(each) if kind} == {sink.fate(each, 1).value}

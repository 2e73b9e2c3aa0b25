"""The sink where brokers refuse, answer late or not at all: rollbacks and errors."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from time import monotonic

import pytest
from confluent_kafka import Producer

from halfbridge.serde.headers import parse_half
from halfbridge.serde.manifest import ManifestTransaction
from halfbridge.serde.partitioner import partition_of
from halfbridge.serde.records import OpKind
from halfbridge.serde.topics import MANIFEST_PARTITIONS
from halfbridge.spark_jobs.sink.errors import CommitInDoubtError, SendError
from halfbridge.spark_jobs.sink.manifest import AttemptOutcome, rounds
from halfbridge.testkit.broker import EmbeddedBroker
from halfbridge.testkit.reader import read_ops
from tests.kit.cluster import ProxiedCluster
from tests.kit.inferred import INFERRED
from tests.kit.proxy import Act, Api, Rule
from tests.spark.sink_parts import ROWS, Sink, sink_parts
from tests.spark.sink_scene import HALF_PARTITIONS

pytestmark = [pytest.mark.spark, pytest.mark.broker]

_INVALID_RECORD = 87  # Kafka's code
_FIVE_WINDOWS = 40_000  # records: 64, 8 times as many each time
_CALL_S = 20.0
Proxied = tuple[ProxiedCluster, "Sink"]


@pytest.fixture
def proxied(topic_prefix: str, tmp_path: Path) -> Iterator[Proxied]:
    """A broker of the test's own, and the sink's parts behind a proxy."""
    with (
        ProxiedCluster(1) as cluster,
        sink_parts(cluster.proxied_servers, topic_prefix, tmp_path) as sink,
    ):
        yield cluster, sink


def test_halves_that_the_brokers_refuse(sink: Sink) -> None:
    """The attempt fails; the next one is as new."""
    sink.attempt()  # its client knows the larger limit
    sink.alter(sink.scene.names.half, "max.message.bytes", "200")
    with pytest.raises(SendError):
        sink.attempt()
    sink.alter(sink.scene.names.half, "max.message.bytes", "1048588")
    sink.committer.commit(0, [sink.attempt()])
    assert OpKind.COMMIT in sink.scene.decisions().values()


def test_what_a_failed_attempt_has_stored_is_rolled_back(proxied: Proxied) -> None:
    """All of it, although its offsets are not known."""
    cluster, sink = proxied
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


def test_a_failure_reaches_only_the_responder_it_happened_to(proxied: Proxied) -> None:
    """Responders of several apps share a client: who waits for it gets another when it failed."""
    cluster, sink = proxied
    first, second = sink.attempt(), sink.attempt(1)
    winner = sink.committer.record(0, [first])
    begun, waiting = Event(), Event()

    def slow() -> Iterator[list[ManifestTransaction]]:
        begun.set()
        assert waiting.wait(_CALL_S)
        cluster.proxy.add(INFERRED)
        yield from rounds(winner.attempts)

    def decided(cut: Iterable[list[ManifestTransaction]]) -> None:
        more = {"producer_group": sink.options.producer_group, "timeout_s": _CALL_S}
        with sink.process.decider(sink.options) as decider:
            decider.decide(OpKind.COMMIT, cut, **more)

    with ThreadPoolExecutor(2) as threads:
        fails = threads.submit(decided, slow())
        assert begun.wait(_CALL_S)
        succeeds = threads.submit(decided, rounds([second.attempt]))
        waiting.set()
    assert isinstance(fails.exception(), CommitInDoubtError)
    assert succeeds.exception() is None
    assert sink.decided(second) == {OpKind.COMMIT}


def test_a_rollback_asks_once_where_a_half_partition_ends(proxied: Proxied) -> None:
    """However many transactions the brokers refused: each question costs a client a connection."""
    cluster, sink = proxied
    stored = sink.attempt()
    sink.alter(sink.scene.names.half, "max.message.bytes", "1000")
    cluster.proxy.add(Rule(api=Api.LIST_OFFSETS, act=Act.HOLD))
    with pytest.raises(SendError):
        sink.attempt(rows=10 * ROWS)
    asked = cluster.proxy.hits(Act.HOLD, Api.LIST_OFFSETS)
    assert 0 < asked <= 2 * HALF_PARTITIONS  # for the beginning and for the end
    assert sink.scene.undecided() == {each.transaction_id for each in stored.attempt.transactions}


def test_no_decision_overtakes_one_that_may_not_be_stored(proxied: Proxied) -> None:
    """An acknowledgement without an offset proves nothing: what comes behind it waits.

    Written again after the ones behind it, it would take its rows behind later ones of their keys.
    """
    cluster, sink = proxied
    report = sink.attempt()
    winner = sink.committer.record(0, [report])
    cluster.proxy.add(INFERRED)
    with pytest.raises(CommitInDoubtError):
        sink.committer.decide_all(winner)
    assert cluster.proxy.hits(Act.FAIL, Api.PRODUCE) == 1
    firsts, *others = rounds([report.attempt])
    assert others
    decided = set(sink.scene.decisions())
    assert decided <= {each.transaction_id for each in firsts}
    sink.committer.decide_all(winner)
    assert sink.decided(report) == {OpKind.COMMIT}


def test_a_manifest_that_may_not_be_stored_is_in_doubt(proxied: Proxied) -> None:
    """An acknowledgement without an offset proves nothing: the batch has to come again."""
    cluster, sink = proxied
    report = sink.attempt()
    cluster.proxy.add(INFERRED)
    with pytest.raises(CommitInDoubtError, match="not acknowledged"):
        sink.committer.commit(0, [report])
    assert cluster.proxy.hits(Act.FAIL, Api.PRODUCE) == 1
    assert sink.scene.decisions() == {}
    sink.committer.commit(0, [report])
    assert sink.decided(report) == {OpKind.COMMIT}


def test_a_manifest_that_is_refused_spoils_nothing(proxied: Proxied) -> None:
    """A responder lives long: after a refusal its client takes no more, and it gets another."""
    cluster, sink = proxied
    first, second = sink.attempt(), sink.attempt()
    cluster.proxy.add(Rule(api=Api.PRODUCE, act=Act.FAIL, error=_INVALID_RECORD, times=1))
    with pytest.raises(CommitInDoubtError):
        sink.committer.reject(0, first.attempt.attempt_id, "too old")
    assert cluster.proxy.hits(Act.FAIL, Api.PRODUCE) == 1
    sink.committer.reject(0, second.attempt.attempt_id, "too old")
    assert sink.fate(second) is AttemptOutcome.ROLLBACK


def test_a_long_log_may_be_read_for_long(topic_prefix: str, tmp_path: Path) -> None:
    """A new app reads all of its partition; its time-out is on brokers that say nothing."""
    with (
        ProxiedCluster(1) as cluster,
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
        assert fates == {AttemptOutcome.COMMIT, AttemptOutcome.ROLLBACK}
        for each in (report, anew):
            assert {kind.value for kind in sink.decided(each) if kind} == {sink.fate(each, 1).value}

"""The producer client on a real broker: what it answers when it is asked."""

import threading
from queue import SimpleQueue

import pytest

from halfbridge.bridge import Answer, CheckCounts, Message, MessageView, Resolution
from halfbridge.serde import OpKind, OpSource
from halfbridge.serde.records import COUNT_UNKNOWN
from tests.integration.producing import ASKED_PARTITION, GROUP, TIMEOUT_S, Cluster, request_of
from tests.kit.waiting import SETTLED_S, until

pytestmark = pytest.mark.broker


# --- checks ------------------------------------------------------------------------------------


@pytest.mark.feature
@pytest.mark.parametrize("answer", list(Resolution))
def test_an_explicit_answer_is_written_and_echoes_the_number(
    cluster: Cluster, answer: Resolution
) -> None:
    """Conformance 17: the checker sees the message; the op echoes ids and covers the half end."""
    views: list[MessageView] = []

    def checker(view: MessageView) -> Resolution:
        views.append(view)
        return answer

    with cluster.producer(checker) as producer:
        for key in (b"0", b"1", b"2", b"3"):
            producer.begin().send(Message(cluster.orders, key=key))
        cluster.ask(request_of(cluster, real_partition=2))
        ((record, op),) = cluster.ops(1)
        assert producer.check_counts().answered == 1
    halves = [r for r in cluster.read(cluster.names.half) if r.partition() == 1]
    assert (record.partition(), record.key()) == (1, op.transaction_id.encode())
    assert (op.kind.value, op.source, op.check_number) == (answer.value, OpSource.CHECK, 3)
    assert (op.message_count, op.half_offset) == (-1, len(halves) - 1)
    (view,) = views
    assert (view.topic, view.partition, view.key, view.value) == (cluster.orders, 2, b"k", b"v")
    assert view.headers == (("h", b"1"), ("h", None))
    assert (view.transaction_id, view.check_number) == (op.transaction_id, 3)
    assert (view.attempt, view.born_timestamp, view.producer_group) == (1, 77, GROUP)


@pytest.mark.parametrize("count", [None, 3])
def test_an_answer_with_a_count_says_how_many_messages_there_are(
    cluster: Cluster, count: int | None
) -> None:
    """The op of the answer has the count, or that it is not known."""
    with cluster.producer(lambda view: Answer(Resolution.COMMIT, message_count=count)):
        cluster.ask(request_of(cluster))
        ((_, op),) = cluster.ops(1)
    assert (op.kind, op.check_number) == (OpKind.COMMIT, 3)
    assert op.message_count == (COUNT_UNKNOWN if count is None else count)


def test_a_hanging_checker_times_out_and_its_late_answer_counts(cluster: Cluster) -> None:
    """UNKNOWN 0 at the time-out; others go on; what it says in the end is still the truth."""
    release = threading.Event()

    def checker(view: MessageView) -> Resolution:
        if view.transaction_id == f"{1:032x}":
            release.wait(TIMEOUT_S)
        return Resolution.COMMIT

    with cluster.producer(checker, check_timeout_ms=50, check_threads=2):
        cluster.ask(request_of(cluster, 1), request_of(cluster, 2))
        ops = {op.transaction_id: op for _, op in cluster.ops(2)}
        assert (ops[f"{1:032x}"].kind, ops[f"{1:032x}"].check_number) == (OpKind.UNKNOWN, 0)
        assert "50 ms" in ops[f"{1:032x}"].reason
        assert ops[f"{2:032x}"].kind is OpKind.COMMIT
        release.set()
        ops_after = cluster.ops(3)
    assert [(op.kind, op.check_number) for _, op in ops_after][-1] == (OpKind.COMMIT, 3)


@pytest.mark.parametrize(
    ("partition", "offsets"),
    [
        (ASKED_PARTITION, {"half_offset": 1}),
        (ASKED_PARTITION, {"half_offset": 0, "last_half_offset": 1}),
        (ASKED_PARTITION - 1, {"half_offset": 1}),
    ],
    ids=["first message", "last message", "empty log"],
)
def test_an_end_below_the_half_messages_is_no_answer(
    cluster: Cluster, partition: int, offsets: dict[str, int]
) -> None:
    """A leader that was deposed tells of its old log: unanswered, and right the next time.

    All messages of the transaction must be covered, and an empty log is not true either.
    """
    beyond = request_of(cluster, 1, half_partition=partition, **offsets)
    with cluster.producer(lambda _: Resolution.COMMIT) as producer:
        cluster.ask(beyond, request_of(cluster, 2))
        ((_, op),) = cluster.ops(1)
        assert op.transaction_id == f"{2:032x}"
        until("the other one is given up", lambda: producer.check_counts().unwritten == 1)
        tx = producer.begin()
        while tx.half_partition != partition:
            tx = producer.begin()
            tx.send(Message(cluster.orders))
        stored = tx.send(Message(cluster.orders))
        cluster.ask(beyond)
        late = [op for _, op in cluster.ops(2) if op.transaction_id == beyond.transaction_id]
    assert [each.half_offset >= stored.half_offset for each in late] == [True]


def test_only_the_newest_attempt_is_checked(cluster: Cluster) -> None:
    """Of what was polled together, one request a transaction; a resumed life is another."""
    cluster.ask(
        request_of(cluster, attempt=1),
        request_of(cluster, attempt=3),
        request_of(cluster, attempt=2),
        request_of(cluster, resume_count=1),
    )
    seen: list[tuple[int, int]] = []

    def checker(view: MessageView) -> Resolution:
        seen.append((view.resume_count, view.attempt))
        return Resolution.COMMIT

    with cluster.producer(checker) as producer:
        cluster.ops(2)
        assert producer.check_counts().superseded == 2
    assert sorted(seen) == [(0, 3), (1, 1)]


def test_a_member_whose_threads_all_hang_leaves_the_group_to_others(cluster: Cluster) -> None:
    """Requests that came to it go to another member; it takes part again when a thread returns."""
    release = threading.Event()
    heard: SimpleQueue[CheckCounts] = SimpleQueue()

    def hang(view: MessageView) -> Resolution:
        assert release.wait(2 * SETTLED_S)
        return Resolution.ROLLBACK

    given = {"check_threads": 1, "check_hung_max": 1, "check_timeout_ms": 50}
    with cluster.producer(hang, on_hung=heard.put, **given) as hung:
        cluster.ask(*(request_of(cluster, number) for number in (1, 2, 3)))
        until("all threads hang", lambda: hung.check_counts().hung == 2)
        with cluster.producer(lambda _: Resolution.COMMIT) as other:
            again = range(1, 11)  # the daemon repeats what stays unanswered
            cluster.ask(*(request_of(cluster, number, attempt=2) for number in again))
            until("the other answers", lambda: other.check_counts().answered == len(again))
        counts = hung.check_counts()
        assert (counts.timed_out, counts.replaced, counts.departures) == (2, 1, 1)
        assert (counts.received, counts.refused, counts.answered) == (3, 1, 0)
        assert heard.get(timeout=TIMEOUT_S).hung in (1, 2)
        release.set()
        cluster.ask(request_of(cluster, 11))
        until("it answers again", lambda: hung.check_counts().answered == 3)
        assert hung.check_counts().hung == 0
        answered = {(op.transaction_id, op.kind) for _, op in cluster.ops() if op.check_number}
    committed = {(f"{number:032x}", OpKind.COMMIT) for number in again}
    assert answered == committed | {(f"{n:032x}", OpKind.ROLLBACK) for n in (1, 2, 11)}

"""What the sink answers to checks, from its log."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, BrokenBarrierError
from time import time_ns

import pytest

from halfbridge.bridge import MessageView, Resolution
from halfbridge.serde.avro import SINK_CONTEXT
from halfbridge.serde.manifest import ManifestAttempt, ManifestKind, ManifestTransaction
from halfbridge.serde.records import OpKind, SinkContext
from halfbridge.spark import checker as checker_module
from halfbridge.spark.checker import NotOfTheSinkError, SinkChecker, StillOpenError
from halfbridge.spark_jobs.sink.attempt import AttemptReport
from halfbridge.spark_jobs.sink.batch import BatchCommitter
from halfbridge.spark_jobs.sink.errors import AttemptGivenUpError
from halfbridge.spark_jobs.sink.manifest import Found
from tests.spark.sink_parts import Sink

pytestmark = [pytest.mark.spark, pytest.mark.broker]

_CALL_S = 20.0
_ALONE_S = 1.0  # in which another thread would have come by


def view(
    report: AttemptReport, *, batch: int = 0, age_ms: int = 0, context: bool = True
) -> MessageView:
    """Return a check of an attempt's first transaction."""
    sink_context = SINK_CONTEXT.encode(SinkContext("feed", batch, report.attempt.attempt_id))
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
        context=sink_context if context else None,
    )


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the log searched for each check of an open batch."""
    monkeypatch.setattr(checker_module, "_OPEN_S", 0.0)


@pytest.mark.feature
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
    (known,) = checker._known.values()
    winner = known.state.winner
    assert winner is not None
    assert winner.manifest.attempts == (ManifestAttempt(report.attempt.attempt_id, ()),)
    assert checker(view(report)) is Resolution.COMMIT
    assert checker(view(loser)) is Resolution.ROLLBACK


def test_what_nobody_commits_is_given_up_in_the_log(sink: Sink) -> None:
    """After the app's own maximum; a commit that comes later finds it, and the batch runs again."""
    report = sink.attempt()
    checker = SinkChecker(sink.options)
    assert checker(view(report, age_ms=86_400_001)) is Resolution.ROLLBACK
    assert [each.kind for each in sink.scene.manifests()] == [ManifestKind.REJECT]
    with pytest.raises(AttemptGivenUpError):
        sink.committer.commit(0, [report])
    sink.committer.commit(0, [sink.attempt()])


def test_the_log_is_not_searched_for_each_transaction(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an open batch there may be ten thousand, and of one that was given up as well."""
    searches: list[int] = []
    find = BatchCommitter.find

    def counted(committer: BatchCommitter, batch_id: int) -> Found:
        searches.append(batch_id)
        return find(committer, batch_id)

    monkeypatch.setattr(BatchCommitter, "find", counted)
    monkeypatch.setattr(checker_module, "_OPEN_S", 3600.0)
    report, other = sink.attempt(), sink.attempt()
    checker = SinkChecker(sink.options)
    for each in (report, report, other):
        with pytest.raises(StillOpenError):
            checker(view(each))
    assert searches == [0]
    for _ in range(2):
        assert checker(view(report, age_ms=86_400_001)) is Resolution.ROLLBACK
    with pytest.raises(StillOpenError):
        checker(view(other))
    assert searches == [0, 0, 0]  # to look, and once more by `reject`


def test_responders_of_one_process_decide_one_after_the_other(sink: Sink) -> None:
    """They share a client, whose failure would be reported to the wrong one."""
    together = Barrier(2)

    def no_rounds() -> Iterator[list[ManifestTransaction]]:
        together.wait(_ALONE_S)
        yield []

    def decided(cut: Iterable[list[ManifestTransaction]]) -> None:
        more = {"producer_group": sink.options.producer_group, "timeout_s": _CALL_S}
        with sink.process.decider(sink.options) as decider:
            decider.decide(OpKind.ROLLBACK, cut, **more)

    decided([])  # the client is made
    with ThreadPoolExecutor(2) as threads:
        both = [threads.submit(decided, no_rounds()) for _ in range(2)]
    assert [type(each.exception()) for each in both] == [BrokenBarrierError] * 2

"""What the gauges say of the pairs that are served."""

from math import inf
from typing import Any

import pytest

from halfbridge.checker.core.events import HalfRead, OpRead
from halfbridge.checker.loop import report
from halfbridge.checker.loop.pair import Pair
from halfbridge.checker.loop.report import Reporter
from halfbridge.checker.metrics import Metrics
from halfbridge.serde.progress import START
from halfbridge.serde.records import OpKind, OpSource
from tests.fake_ports import Clock
from tests.ledger_log import BEGIN_MS, HOUR_MS, SECOND_MS, SETTINGS, UNLIMITED, metadata, op_record

HALF_MS, OP_MS = 7 * HOUR_MS, 9 * HOUR_MS


class Message:
    """A record of which only its time is looked at: partition time."""

    def timestamp(self) -> tuple[int, int]:
        """Return an append time."""
        return 2, BEGIN_MS + HOUR_MS


@pytest.fixture
def pair() -> Pair:
    """A pair that is rebuilt, and whose time is an hour after BEGIN_MS."""
    nothing: Any = None
    pair = Pair(3, SETTINGS, START, nothing, began=0.0)
    pair.ledger.plan(0, records_max=1, size_bytes_max=UNLIMITED)
    pair._take_time(Message(), 0.0)
    return pair


def left_s(pair: Pair, half_ms: int | None = HALF_MS, op_ms: int | None = OP_MS) -> float | None:
    """Return what the gauge says, with these retentions."""
    metrics = Metrics()
    Reporter(metrics, Clock()).state([pair], 0.0, (half_ms, op_ms))
    value = metrics.registry.get_sample_value
    return value("halfbridge_retention_left_seconds", {"partition": "3"})


def add_half(pair: Pair, name: str, offset: int, append_ms: int) -> None:
    """Have the ledger read a half message."""
    pair.ledger.half(HalfRead(offset, append_ms, metadata(name), "", 1, None))


def test_retention_counts_from_the_oldest_undecided_half_message(pair: Pair) -> None:
    """Until it is decided; then from the next one, and from nothing."""
    assert left_s(pair) == inf
    add_half(pair, "A", 0, BEGIN_MS)
    add_half(pair, "B", 1, BEGIN_MS + SECOND_MS)
    assert left_s(pair) == (HALF_MS - HOUR_MS) / 1000
    for offset, (name, wanted) in enumerate((("A", (HALF_MS - HOUR_MS) / 1000 + 1), ("B", inf))):
        op = op_record(name, OpKind.ROLLBACK, half_offset=offset)
        pair.ledger.op(OpRead(offset, BEGIN_MS + HOUR_MS, op))
        pair.ledger.plan(BEGIN_MS, records_max=UNLIMITED, size_bytes_max=UNLIMITED)
        assert left_s(pair) == wanted


def test_retention_counts_from_the_oldest_op_that_is_not_applied(pair: Pair) -> None:
    """One that waits holds all behind it."""
    pair.ledger.op(OpRead(0, BEGIN_MS, op_record("A", OpKind.COMMIT, half_offset=5)))
    pair.ledger.op(OpRead(1, BEGIN_MS + 1, op_record("B", OpKind.COMMIT, half_offset=5)))
    assert left_s(pair) == (OP_MS - HOUR_MS) / 1000
    add_half(pair, "A", 0, BEGIN_MS)
    assert left_s(pair) == (HALF_MS - HOUR_MS) / 1000


@pytest.mark.parametrize("kept_ms", [-1, None])
def test_what_is_kept_for_ever_or_for_nobody_knows_how_long(
    pair: Pair, kept_ms: int | None
) -> None:
    """There is nothing to count from, and no alarm."""
    add_half(pair, "A", 0, BEGIN_MS)
    assert left_s(pair, half_ms=kept_ms) == inf


def test_a_record_without_an_append_time_counts_for_nothing(pair: Pair) -> None:
    """Its topic goes by its writer's clock, and nobody believes that."""
    add_half(pair, "A", 0, -1)
    assert left_s(pair) == inf


def test_lines_about_records_of_others_are_counted_beyond_a_pace(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whoever may write a record can have a line logged for it: only so many a second are."""
    clock = Clock()
    lines = report.LimitedLog(clock)
    for number in range(report.LINES_A_SECOND_MAX + 7):
        lines.log("line %d", number)
    assert len(caplog.messages) == report.LINES_A_SECOND_MAX
    clock.now += 1.0
    lines.log("the next second")
    assert caplog.messages[-2:] == ["7 more lines like these were left out", "the next second"]


def test_a_failed_attempt_is_told_apart_from_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    """A group whose checker fails is not an empty one; the log has the reason, now and then."""
    metrics = Metrics()
    reporter = Reporter(metrics, Clock())
    answer = op_record("A", OpKind.UNKNOWN, half_offset=0)._replace(
        source=OpSource.CHECK, check_number=1, producer_group="orders"
    )
    failed = answer._replace(check_number=0, actor="host:7", reason="checker raised\nOSError()")
    reporter.answered([answer, failed, failed], 0.0)
    reporter.answered([failed], report.REPORTED_AGAIN_S - 1)
    value = metrics.registry.get_sample_value
    for resolution, count in (("UNKNOWN", 1), ("FAILED", 3)):
        labels = {"group": "orders", "resolution": resolution}
        assert value("halfbridge_checks_answered_total", labels) == count
    (line,) = caplog.messages
    assert line == (
        "transaction A stays undecided: the checker of group orders, at host:7, failed:"
        " checker raised\\nOSError()"
    )
    reporter.answered([failed], report.REPORTED_AGAIN_S)
    assert len(caplog.messages) == 2

"""Where logs end, as brokers tell that answer, refuse or stay silent."""

from collections.abc import Iterable
from typing import Any

import pytest

from halfbridge.kafka.ends import Ends, half_end
from halfbridge.kafka.errors import Code, FatalError, KafkaFailure, RetriableError, TopicSetupError
from halfbridge.kafka.ports import Edge, TopicPartition
from halfbridge.kafka.stalls import LaggingPartition, compare


class _Answer:
    def __init__(self, reported: int | Exception) -> None:
        self._reported = reported

    def done(self) -> bool:
        """Tell that nobody waits."""
        return True

    def result(self, _timeout_s: float | None = None) -> int:
        if isinstance(self._reported, Exception):
            raise self._reported
        return self._reported


class Brokers:
    """An admin client whose answers a test sets."""

    def __init__(self, *reported: int | Exception) -> None:
        self._reported = reported
        self.edges: list[Edge] = []

    def ask_ends(
        self, places: Iterable[TopicPartition], edge: Edge, timeout_s: float
    ) -> dict[TopicPartition, Any]:
        assert timeout_s
        self.edges.append(edge)
        return {
            place: _Answer(reported) for place, reported in zip(places, self._reported, strict=True)
        }


def _half_end(reported: int | Exception) -> int:
    brokers: Any = Brokers(reported)
    return half_end(brokers, "half", 0, timeout_s=1.0)


def test_the_last_offset_is_before_the_high_watermark() -> None:
    """-1 where nothing was ever written."""
    assert [_half_end(end) for end in (8, 0)] == [7, -1]


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        (KafkaFailure(Code.NOENT), TopicSetupError),
        (KafkaFailure(Code.TIMED_OUT), RetriableError),
        (RuntimeError("closed"), FatalError),
    ],
)
def test_whoever_does_not_say_is_named_by_who_must_act(
    reported: Exception, expected: type[Exception]
) -> None:
    """A partition that is not there is the operator's, a silent broker nobody's."""
    with pytest.raises(expected):
        _half_end(reported)


def test_partitions_whose_broker_is_silent_are_left_out() -> None:
    """The others' ends are known."""
    brokers: Any = Brokers(5, KafkaFailure(Code.TRANSPORT), 0)
    ends = Ends(brokers, [("half", 0), ("half", 1), ("op", 0)], 1.0, edge=Edge.STABLE_END)
    assert ends.is_over
    assert ends.answers() == {("half", 0): 5, ("op", 0): 0}
    assert brokers.edges == [Edge.STABLE_END]


# --- what counts as a reader that stands still, and what as one that has nothing to read ---

HALF, OP = ("half", 0), ("op", 0)


def test_who_has_read_all_is_not_behind() -> None:
    """However long nothing comes."""
    assert compare({}, {HALF: 7, OP: 9}, {HALF: 7, OP: 9}, 100.0) == {}


def test_a_growing_log_is_behind_since_it_was_first_found() -> None:
    """Not since it was last found: that would be for ever."""
    first = compare({}, {HALF: 7}, {HALF: 8}, 100.0)
    assert first == {HALF: LaggingPartition(7, 100.0)}
    assert compare(first, {HALF: 7}, {HALF: 30}, 120.0) == first


def test_who_reads_on_is_not_still_behind() -> None:
    """A backlog may take an hour: as long as it shrinks, time begins again."""
    first = compare({}, {HALF: 7}, {HALF: 8000}, 100.0)
    assert compare(first, {HALF: 20}, {HALF: 9000}, 120.0) == {HALF: LaggingPartition(20, 120.0)}


def test_where_no_broker_answers_time_begins_anew_with_the_next_answer() -> None:
    """Nobody could read while it was away, and the client may learn later that it is back."""
    first = compare({}, {HALF: 7, OP: 3}, {HALF: 8, OP: 4}, 100.0)
    away = compare(first, {HALF: 7, OP: 3}, {OP: 4}, 120.0)
    assert away == {OP: LaggingPartition(3, 100.0)}
    assert compare(away, {HALF: 7, OP: 3}, {HALF: 8, OP: 4}, 140.0)[HALF] == LaggingPartition(
        7, 140.0
    )


def test_what_is_not_fetched_is_not_behind() -> None:
    """A paused partition, or one that was taken away, is nobody's fault."""
    first = compare({}, {HALF: 7}, {HALF: 8}, 100.0)
    assert compare(first, {}, {HALF: 9}, 120.0) == {}

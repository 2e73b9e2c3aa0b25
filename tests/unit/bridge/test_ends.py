"""Where logs end, as brokers tell that answer, refuse or stay silent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from halfbridge.kafka.ends import Ends, half_end
from halfbridge.kafka.errors import Code, FatalError, KafkaFailure, RetriableError, TopicSetupError
from halfbridge.kafka.ports import Edge, Place


class _Answer:
    def __init__(self, told: int | Exception) -> None:
        self._told = told

    def done(self) -> bool:
        """Tell that nobody waits."""
        return True

    def result(self, _timeout_s: float | None = None) -> int:
        """Return or raise what a test says."""
        if isinstance(self._told, Exception):
            raise self._told
        return self._told


class Brokers:
    """An admin client whose answers a test sets."""

    def __init__(self, *told: int | Exception) -> None:
        self._told = told
        self.edges: list[Edge] = []

    def ask_ends(self, places: Iterable[Place], edge: Edge, timeout_s: float) -> dict[Place, Any]:
        """Return an answer for each place."""
        assert timeout_s
        self.edges.append(edge)
        return {place: _Answer(told) for place, told in zip(places, self._told, strict=True)}


def _half_end(told: int | Exception) -> int:
    brokers: Any = Brokers(told)
    return half_end(brokers, "half", 0, timeout_s=1.0)


def test_the_last_offset_is_before_the_high_watermark() -> None:
    """-1 where nothing was ever written."""
    assert [_half_end(end) for end in (8, 0)] == [7, -1]


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (KafkaFailure(Code.NOENT), TopicSetupError),
        (KafkaFailure(Code.TIMED_OUT), RetriableError),
        (RuntimeError("closed"), FatalError),
    ],
)
def test_whoever_does_not_say_is_told_of_by_who_must_act(
    told: Exception, expected: type[Exception]
) -> None:
    """A partition that is not there is the operator's, a silent broker nobody's."""
    with pytest.raises(expected):
        _half_end(told)


def test_partitions_whose_broker_is_silent_are_left_out() -> None:
    """The others' ends are known."""
    brokers: Any = Brokers(5, KafkaFailure(Code.TRANSPORT), 0)
    ends = Ends(brokers, [("half", 0), ("half", 1), ("op", 0)], 1.0, edge=Edge.STABLE_END)
    assert ends.is_over
    assert ends.answers() == {("half", 0): 5, ("op", 0): 0}
    assert brokers.edges == [Edge.STABLE_END]

"""Hands the records of one fetch to their pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from halfbridge.kafka.client_errors import failure_of
from halfbridge.kafka.errors import Code
from halfbridge.serde.records import OpSource

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from halfbridge.checker.loop.pair import Pair
    from halfbridge.kafka.errors import KafkaFailure
    from halfbridge.serde.records import Op


class Taken(NamedTuple):
    """The result of taking the records of one fetch.

    Attributes:
        answers: Answers to checks, and failed attempts.
        failure: Why a partition cannot be read; later records were not taken.
        failed: The partition of `failure` -> its topic.
    """

    answers: list[Op]
    failure: KafkaFailure | None
    failed: dict[int, str]


def take_records(
    messages: Iterable[Any], pairs: Mapping[int, Pair], half_topic: str, now: float
) -> Taken:
    """Hand each record of half and op topic to its pair, in order; stop at a failure.

    Args:
        messages: The records that `Input.fetch` returned.
        pairs: Partition -> pair, for pairs that are served; records of other pairs are left out.
        half_topic: Name of the half topic; every other topic is the op topic.
        now: Monotonic seconds.
    """
    answers: list[Op] = []
    for message in messages:
        pair, topic = pairs.get(message.partition()), message.topic()
        if pair is None or topic is None:  # errors of the group: see `Input`
            continue
        error = message.error()
        if error is not None:
            failure = failure_of(error)
            if failure.code != Code.PARTITION_EOF:
                return Taken(answers, failure, {pair.partition: topic})
            pair.take_end(message, is_half=topic == half_topic)
        elif topic == half_topic:
            pair.take_half(message, now)
        else:
            op = pair.take_op(message, now)
            if op is not None and op.source is OpSource.CHECK:
                answers.append(op)
    return Taken(answers, None, {})

"""What one fetch brought, given to the pairs that it belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from halfbridge.bridge.failure import Code
from halfbridge.bridge.kafka.errors import failure_of
from halfbridge.serde.records import OpSource

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from halfbridge.bridge.failure import KafkaFailure
    from halfbridge.checker.loop.pair import Pair
    from halfbridge.serde.records import Op


class Taken(NamedTuple):
    """What was among the records of one fetch.

    Attributes:
        answers: Answers to checks, and failed attempts.
        failure: Why a partition can be read no further; records behind it were not taken.
        failed: The partition of `failure` and its topic.
    """

    answers: list[Op]
    failure: KafkaFailure | None
    failed: dict[int, str]


def take_records(
    messages: Iterable[Any], pairs: Mapping[int, Pair], half_topic: str, now: float
) -> Taken:
    """Give each record of half and op topic to its pair, in order; stop at a failure.

    Args:
        messages: As `Input.fetch` returned them.
        pairs: The pairs served, by partition; what belongs to no pair is left out.
        half_topic: Name of the half topic; every other topic is the op topic.
        now: Monotonic seconds.
    """
    answers: list[Op] = []
    for message in messages:
        pair, topic = pairs.get(message.partition()), message.topic()
        if pair is None or topic is None:  # of the group: `Input` has noted it
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

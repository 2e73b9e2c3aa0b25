"""Asks brokers where partitions end, by an admin client.

A consumer would ask about one partition after the other, would need a group and its time-outs, and
one broker that is down would delay all answers.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from halfbridge.kafka.client_errors import failure_of
from halfbridge.kafka.errors import Code, KafkaFailure, TopicSetupError, bridge_error
from halfbridge.kafka.ports import Edge

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halfbridge.kafka.ports import Admin, TopicPartition


def half_end(admin: Admin, topic: str, partition: int, *, timeout_s: float) -> int:
    """Return the last offset of a partition: its high watermark - 1; -1 when it is empty.

    Not the last stable offset, which is too low while a kafka_txn of the daemon is open.

    Raises:
        TopicSetupError: there is no such partition; an operator acts.
        BridgeError: the broker did not say; try again later.
    """
    place = topic, partition
    try:
        return admin.ask_ends([place], Edge.END, timeout_s)[place].result() - 1
    except (KafkaFailure, RuntimeError) as error:
        failure = failure_of(error)
        if failure.code == Code.NOENT:
            text = f"topic {topic} has no partition {partition}"
            raise TopicSetupError(text, topics=(topic,)) from error
        raise bridge_error(failure) from error


class Ends:
    """A question where partitions end; partitions silent for `timeout_s` are given up."""

    def __init__(
        self,
        admin: Admin,
        wanted: Iterable[TopicPartition],
        timeout_s: float,
        *,
        edge: Edge = Edge.END,
    ) -> None:
        self._answers = admin.ask_ends(wanted, edge, timeout_s)

    @property
    def is_over(self) -> bool:
        """Whether `answers` returns without waiting."""
        return all(each.done() for each in self._answers.values())

    def answers(self) -> dict[TopicPartition, int]:
        """Return the end of each partition whose broker answered; blocks."""
        found = {}
        for place, answer in self._answers.items():
            with suppress(KafkaFailure, RuntimeError):  # as above
                found[place] = answer.result()
        return found

"""Asks for a topic's id, which tells a topic from another one that had its name before.

There is no port for this: the daemon and the client do not ask.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from confluent_kafka import TopicCollection

from halfbridge.bridge.kafka.admin import KafkaAnswer
from halfbridge.bridge.kafka.admin_client import AdminClient

if TYPE_CHECKING:
    from collections.abc import Mapping

_NO_UUID = 0  # brokers before Kafka 2.8, and other makes, have no ids
_MASK = (1 << 64) - 1


class TopicIds:
    """Asks for the ids of topics.

    Args:
        properties: Of an admin client.
    """

    def __init__(self, properties: Mapping[str, Any]) -> None:
        self._properties = dict(properties)
        self._client: Any = None

    def ask(self, topic: str, timeout_s: float) -> str:
        """Return the id of a topic, 32 hexadecimal digits.

        Where the brokers have no ids, a hash of the topic's name is returned: then a topic that is
        deleted and created again looks like the one before.

        Raises:
            KafkaFailure: The topic does not exist or may not be described, or no broker answers.
        """
        client = self._client or AdminClient(self._properties)
        self._client = None  # one that had no answer may wait for a dead controller for ever
        futures = client.describe_topics(TopicCollection([topic]), request_timeout=timeout_s)
        number: int = KafkaAnswer(futures[topic], _number, timeout_s).result()
        self._client = client
        if number == _NO_UUID:
            return hashlib.sha256(topic.encode()).hexdigest()[:32]
        return f"{number:032x}"


def _number(result: Any) -> int:
    uuid = result.topic_id
    most, least = uuid.get_most_significant_bits(), uuid.get_least_significant_bits()
    return int((most & _MASK) << 64 | least & _MASK)

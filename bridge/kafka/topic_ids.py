"""Asks for a topic's id, which tells a topic from another one that had its name before.

Ids of messages are made of the hexadecimal digits. `Admin.ask_topic_ids` gives Kafka's own text.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from confluent_kafka import TopicCollection

from halfbridge.bridge.kafka.admin import KafkaAnswer, topic_number
from halfbridge.bridge.kafka.admin_client import AdminClient

if TYPE_CHECKING:
    from collections.abc import Mapping


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
        number: int = KafkaAnswer(futures[topic], topic_number, timeout_s).result()
        self._client = client
        if not number:
            return hashlib.sha256(topic.encode()).hexdigest()[:32]
        return f"{number:032x}"

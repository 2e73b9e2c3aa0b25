"""A writer whose acknowledgements a test gives, and a producer's shared part around it."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from halfbridge.bridge.config import BridgeConfig
from halfbridge.bridge.shared import Shared
from halfbridge.kafka.adapter import system_ports
from halfbridge.kafka.ports import Ports, SeenTopic
from halfbridge.kafka.topics import RealTopics
from halfbridge.serde.topics import HalfShape

NOW_MS = 1_700_000_000_000
ID = "0123456789abcdef0123456789abcdef"


class Clock:
    """A clock that a test sets."""

    now_s = 100.0

    def monotonic(self) -> float:
        """Return the time; each look takes a tenth of a second."""
        self.now_s += 0.1
        return self.now_s

    def time_ms(self) -> int:
        return NOW_MS


class FakeWriter:
    """Takes records, and acknowledges them when it is polled with `answers` to give.

    Attributes:
        sent: Topic, value, key, partition and headers of each record.
        refusals: Raised by the next calls of `produce`, one by one.
        answers: For the oldest unacknowledged records: an error, or None.
        longest_poll_s: The longest time that a poll was allowed to wait.
    """

    def __init__(self) -> None:
        self.sent: list[SimpleNamespace] = []
        self.refusals: list[Exception] = []
        self.answers: list[Any] = []
        self.longest_poll_s = 0.0
        self._waiting: list[tuple[Callable[[Any, Any], None], str, int]] = []

    def produce(self, topic: str, value: Any, key: Any, partition: int, *rest: Any) -> None:
        on_delivery, _timestamp_ms, headers = rest
        if self.refusals:
            raise self.refusals.pop(0)
        self.sent.append(
            SimpleNamespace(topic=topic, value=value, key=key, partition=partition, headers=headers)
        )
        self._waiting.append((on_delivery, topic, partition))

    def poll(self, wait_s: float) -> int:
        self.longest_poll_s = max(self.longest_poll_s, wait_s)
        served = 0
        while self.answers and self._waiting:
            on_delivery, topic, partition = self._waiting.pop(0)
            reported = {"topic": topic, "partition": partition, "offset": len(self.sent) - 1}
            reported |= {"timestamp": (2, NOW_MS + 5)}
            record = SimpleNamespace(**{name: lambda it=it: it for name, it in reported.items()})
            on_delivery(self.answers.pop(0), record)
            served += 1
        return served

    def close(self) -> None:
        """Give up what is not acknowledged."""
        self._waiting.clear()

    def topics(self, _timeout_s: float) -> dict[str, SeenTopic]:
        return {"orders": SeenTopic(3, 1)}

    def __len__(self) -> int:
        return len(self._waiting)


def shared_around(
    writer: FakeWriter,
    failed: Callable[[Any], object] | None = None,
    *,
    ports: Ports | None = None,
    **settings: Any,
) -> Shared:
    """Return what a producer's transactions share, with a clock and ids that a test knows."""
    given: dict[str, Any] = {"bootstrap_servers": "b:1", "producer_group": "g", **settings}
    config = BridgeConfig(**given)
    if ports is None:
        ports = replace(system_ports(), clock=Clock(), transaction_id=lambda: ID)
    shape = HalfShape(partitions=4, record_bytes_max=1_000_000, replicas=1)
    client: Any = writer
    real_topics = RealTopics(config.names, client, ports, timeout_s=1.0)
    return Shared(
        config,
        client,
        ports,
        half=shape,
        real_topics=real_topics,
        on_decision_failed=failed,
    )

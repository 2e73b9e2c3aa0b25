"""Where messages can go, as brokers tell it that are away or have just started."""

from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any

import pytest

from halfbridge.bridge.config import BridgeConfig, writer_properties
from halfbridge.kafka.adapter import system_ports
from halfbridge.kafka.errors import InvalidMessageError, RetriableError, TopicSetupError
from halfbridge.kafka.ports import SeenTopic
from halfbridge.kafka.topics import RealTopics

_CALL_S = 1.0
_SENDERS = 8
_CONFIG = BridgeConfig(bootstrap_servers="127.0.0.1:1", producer_group="g")


class _Brokers:
    """Stands for a Kafka client: each question is answered by the next of the given answers.

    The last one is repeated.
    """

    def __init__(self, *answers: dict[str, int]) -> None:
        self._answers = list(answers)
        self.asked = 0

    def topics(self, timeout_s: float) -> dict[str, SeenTopic]:
        """Return topics with so many partitions each."""
        assert timeout_s
        answer = self._answers[min(self.asked, len(self._answers) - 1)]
        self.asked += 1
        return {name: SeenTopic(partitions, 1) for name, partitions in answer.items()}


def _unreachable() -> Any:
    ports = system_ports()
    return ports.kafka.writer(writer_properties(_CONFIG, ports.clock, message_bytes_max=1_000_000))


def _real_topics(client: Any, timeout_s: float = _CALL_S) -> RealTopics:
    return RealTopics(_CONFIG.names, client, system_ports(), timeout_s=timeout_s)


def test_threads_share_the_failure_of_a_question() -> None:
    """While no broker answers nobody waits for the questions of others, and then asks anew."""
    real_topics = _real_topics(_unreachable())
    began = monotonic()
    with ThreadPoolExecutor(_SENDERS) as pool:
        asked = [pool.submit(real_topics.check, "orders", 0) for _ in range(_SENDERS)]
        failures = [each.exception() for each in asked]
    assert [type(failure) for failure in failures] == [RetriableError] * _SENDERS
    assert monotonic() - began < _SENDERS * _CALL_S / 2


def test_a_failure_is_not_kept_for_who_comes_later() -> None:
    """Whoever asks after a question has failed is not told of it, but asks."""
    real_topics = _real_topics(_unreachable(), timeout_s=0.1)
    with pytest.raises(RetriableError):
        real_topics.check("orders", 0)
    real_topics._client = _Brokers({"orders": 1})
    real_topics.check("orders", 0)


def test_a_broker_that_has_just_started_does_not_make_topics_vanish() -> None:
    """Its first answers may lack topics and partitions that exist: they are asked for again."""
    brokers = _Brokers({"orders": 3}, {}, {"orders": 1}, {"bills": 2})
    real_topics = _real_topics(brokers)
    real_topics.check("orders", 0)
    real_topics.check("bills", 1)
    real_topics.check("orders", 0)
    assert brokers.asked == 4


def test_a_partition_is_waited_for_like_a_topic() -> None:
    """A topic that grew shows its new partitions a moment later."""
    real_topics = _real_topics(_Brokers({"orders": 1}, {"orders": 1}, {"orders": 2}))
    real_topics.check("orders", 0)
    real_topics.check("orders", 1)


def test_what_does_not_appear_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patience has an end."""
    monkeypatch.setattr("halfbridge.kafka.topics.GRACE_S", 0.1)
    real_topics = _real_topics(_Brokers({"orders": 1}))
    with pytest.raises(TopicSetupError, match="bills") as missing:
        real_topics.check("bills", 0)
    assert missing.value.topics == ("bills",)
    with pytest.raises(InvalidMessageError, match="no partition 1"):
        real_topics.check("orders", 1)


def test_threads_are_patient_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waits for its topic from when it began to send, not once more behind the others."""
    monkeypatch.setattr("halfbridge.kafka.topics.GRACE_S", _CALL_S)
    real_topics = _real_topics(_Brokers({}))
    began = monotonic()
    with ThreadPoolExecutor(_SENDERS) as pool:
        asked = [pool.submit(real_topics.check, f"t{n}", 0) for n in range(_SENDERS)]
        failures = [each.exception() for each in asked]
    assert [type(failure) for failure in failures] == [TopicSetupError] * _SENDERS
    assert monotonic() - began < _SENDERS * _CALL_S / 2

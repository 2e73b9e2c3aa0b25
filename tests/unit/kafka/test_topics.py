"""Topics as brokers tell them, and those that are made."""

import gc
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from types import SimpleNamespace
from typing import Any
from weakref import ref

import pytest

from halfbridge.bridge.config import BridgeConfig, writer_properties
from halfbridge.kafka.adapter import system_ports
from halfbridge.kafka.errors import (
    Code,
    InvalidMessageError,
    KafkaFailure,
    RetriableError,
    TopicSetupError,
)
from halfbridge.kafka.ports import NewTopic, SeenTopic
from halfbridge.kafka.topics import GRACE_S, RealTopics, Topics
from halfbridge.serde.topics import MESSAGE_BYTES_MAX, TopicNames
from tests.fake_ports import Clock, fake_ports

NAMES = TopicNames("")
TIMEOUT_S = 10.0
CHECKS = NewTopic("checks", 4, 1, {})


@dataclass
class Brokers:
    """What brokers say of their topics.

    Attributes:
        there: Topic to its partitions.
        settings: Settings of each topic, or the error that asking for them raises.
        made: What the question for a new topic is answered with.
        appears_s: How long a new topic takes to appear.
        answers_after_s: How long the answers about partitions take, one by one; then none comes.
    """

    clock: Clock = field(default_factory=lambda: Clock(0.0))
    there: dict[str, int] = field(default_factory=lambda: {NAMES.half: 2, NAMES.op: 2})
    settings: dict[str, str] | KafkaFailure = field(default_factory=dict)
    made: KafkaFailure | None = None
    appears_s: float = 0.0
    answers_after_s: list[float] = field(default_factory=list)
    coming: dict[str, float] = field(default_factory=dict)
    asked: int = 0

    def topics(self, _timeout_s: float) -> dict[str, SeenTopic]:
        self.asked += 1
        come = {name: 4 for name, at in self.coming.items() if at <= self.clock.now}
        return {name: SeenTopic(n, 1) for name, n in (self.there | come).items()}

    def partitions(self, topics: Sequence[str], _timeout_s: float) -> dict[str, Any]:
        if not self.answers_after_s:
            raise KafkaFailure(Code.TIMED_OUT)
        self.clock.now += self.answers_after_s.pop(0)
        return dict.fromkeys(topics, ())

    def ask_settings(self, topics: Sequence[str], _timeout_s: float) -> dict[str, Any]:
        return {topic: answer(self.settings) for topic in topics}

    def create_topics(self, topics: Sequence[NewTopic], _timeout_s: float) -> dict[str, Any]:
        if self.made is None:
            self.coming |= {one.name: self.clock.now + self.appears_s for one in topics}
        return {one.name: answer(self.made) for one in topics}

    def topics_of(self) -> Topics:
        ports = fake_ports(clock=self.clock)
        return Topics(self, ports, NAMES, remedy="run: make", timeout_s=TIMEOUT_S)


def answer(reported: object) -> Any:
    """Return an answer that is a value, or raises a failure."""

    def result() -> object:
        if isinstance(reported, KafkaFailure):
            raise reported
        return reported

    return SimpleNamespace(result=result)


def test_the_half_topic_has_the_shape_that_its_settings_say() -> None:
    """Asked twice in all: for topics, and for settings."""
    brokers = Brokers(settings={"max.message.bytes": "2000000"})
    shape = brokers.topics_of().half_shape()
    assert (shape.partitions, shape.record_bytes_max, shape.replicas) == (2, 2_000_000, 1)
    assert brokers.asked == 1


@pytest.mark.parametrize("code", [Code.TOPIC_AUTHORIZATION_FAILED, Code.TIMED_OUT])
def test_a_limit_that_is_not_reported_is_kafkas_default(code: Code) -> None:
    """Without the right, and from brokers that do not know the question."""
    shape = Brokers(settings=KafkaFailure(code)).topics_of().half_shape()
    assert shape.record_bytes_max == MESSAGE_BYTES_MAX


def test_a_round_trip_is_the_quickest_of_three_answers() -> None:
    """One that waits for a busy broker says nothing of its distance; silence is an error."""
    brokers = Brokers(answers_after_s=[0.02, 0.0004, 0.003])
    assert brokers.topics_of().round_trip_s() == pytest.approx(0.0004)
    with pytest.raises(RetriableError):
        brokers.topics_of().round_trip_s()


def test_settings_that_are_not_reported_are_not_taken_for_none() -> None:
    """A topic without the right to read its settings may be as it must be; silence says nothing."""
    refused = Brokers(settings=KafkaFailure(Code.TOPIC_AUTHORIZATION_FAILED))
    assert refused.topics_of().settings("orders") == {}
    silent = Brokers(settings=KafkaFailure(Code.TIMED_OUT))
    with pytest.raises(RetriableError):
        silent.topics_of().settings("orders")


@pytest.mark.parametrize(
    ("there", "text", "named"),
    [
        ({}, f"no topic {NAMES.half} and no topic {NAMES.op}; run: make", (NAMES.half, NAMES.op)),
        ({NAMES.half: 2}, f"no topic {NAMES.op}; run: make", (NAMES.op,)),
        (
            {NAMES.half: 2, NAMES.op: 3},
            "must have the same number; run: make",
            (NAMES.half, NAMES.op),
        ),
    ],
)
def test_what_is_missing_is_waited_for_and_then_reported(
    there: dict[str, int], text: str, named: tuple[str, ...]
) -> None:
    """A topic that was made a moment ago is not in every broker's metadata."""
    brokers = Brokers(there=there)
    with pytest.raises(TopicSetupError, match=text) as reported:
        brokers.topics_of().half_shape()
    assert reported.value.topics == named
    assert (brokers.clock.now >= GRACE_S) is (len(there) < 2)


def test_a_topic_that_appears_late_is_waited_for() -> None:
    """As long as one answer may take."""
    brokers = Brokers(appears_s=TIMEOUT_S / 2)
    topics = brokers.topics_of()
    topics.half_shape()
    topics.make_missing([CHECKS])
    assert brokers.clock.now >= TIMEOUT_S / 2
    late = Brokers(appears_s=2 * TIMEOUT_S)
    with pytest.raises(TopicSetupError, match="checks: created, but not in"):
        late.topics_of().make_missing([CHECKS])


def test_what_is_there_is_not_made() -> None:
    """Nor asked for again."""
    brokers = Brokers(there={NAMES.half: 2, NAMES.op: 2, "checks": 4})
    topics = brokers.topics_of()
    topics.half_shape()
    topics.make_missing([CHECKS])
    assert (brokers.coming, brokers.asked) == ({}, 1)


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (Code.TOPIC_ALREADY_EXISTS, "checks: created, but not in"),
        (Code.CLUSTER_AUTHORIZATION_FAILED, r"could not be created \(CLUSTER_.*\); run: make"),
    ],
)
def test_a_topic_that_another_has_made_meanwhile_is_as_good(code: Code, outcome: str) -> None:
    """A refusal names the command."""
    with pytest.raises(TopicSetupError, match=outcome) as reported:
        Brokers(made=KafkaFailure(code)).topics_of().make_missing([CHECKS])
    assert reported.value.topics == ("checks",)


# --- which partitions of a topic take no records, as its metadata and its setting show -----
@pytest.mark.parametrize(
    ("min_in_sync", "replicas", "in_sync", "unavailable"),
    [
        (None, 3, (1, 3), []),  # the setting is not known
        (1, 3, (1, 3), []),
        (2, 3, (1, 2), [0]),
        (3, 3, (2, 3), [0]),
        (2, 1, (1, 1), []),  # more than there are replicas: all of them are required
        (3, 2, (2, 2), []),
        (3, 2, (1, 2), [0]),
        (2, 3, (), []),  # the metadata are not known
    ],
)
def test_brokers_require_no_more_replicas_in_sync_than_there_are(
    min_in_sync: int | None, replicas: int, in_sync: tuple[int, ...], unavailable: list[int]
) -> None:
    """The lower of min.insync.replicas and the number of replicas: Partition.effectiveMinIsr."""
    seen = SeenTopic(2, replicas, in_sync=in_sync)
    assert [*seen.unavailable(min_in_sync)] == unavailable


def test_the_reason_names_the_numbers_and_a_missing_leader_comes_first() -> None:
    """A partition without a leader has no replica count worth showing."""
    seen = SeenTopic(3, 2, frozenset({2}), in_sync=(2, 1, 0))
    assert seen.unavailable(3) == {
        1: "has 1 of 2 required replicas in sync (min.insync.replicas=3)",
        2: "has no leader",
    }


# --- where messages can go, as brokers tell it that are away or have just started ----------

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
    return ports.kafka.writer(
        writer_properties(_CONFIG, ports.clock, message_bytes_max=1_000_000, round_trip_s=0.0)
    )


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
    """A question after a failed one is asked anew, and does not get its error."""
    real_topics = _real_topics(_unreachable(), timeout_s=0.1)
    with pytest.raises(RetriableError):
        real_topics.check("orders", 0)
    real_topics._client = _Brokers({"orders": 1})
    real_topics.check("orders", 0)


def test_a_failure_keeps_nothing_of_who_met_it() -> None:
    """Its traceback would: the caller's variables, for as long as no other question fails."""
    real_topics = _real_topics(_unreachable(), timeout_s=0.1)

    def fail() -> ref[_Brokers]:
        held = _Brokers()
        with suppress(RetriableError):
            real_topics.check("orders", 0)
        return ref(held)

    held = fail()
    gc.collect()
    assert held() is None


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

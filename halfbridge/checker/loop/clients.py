"""The Kafka clients of a worker: their common properties, the admin client, and silent clients.

A client that a worker keeps for its life (consumer, admin client, producer of check requests) is
replaced when no broker answers it (`UnansweredTimer`). `StallWatch` replaces a consumer that is
answered and reads nothing. All other clients are replaced after each failure, or live as long as
one question.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from halfbridge.checker.loop.failures import InputLostError
from halfbridge.kafka.ends import Ends
from halfbridge.kafka.error_log import RECONNECTING, ErrorLog
from halfbridge.kafka.errors import NO_SUCH_TOPIC, Code, ConfigError, KafkaFailure
from halfbridge.kafka.ports import Edge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from halfbridge.checker.config import CheckerConfig
    from halfbridge.kafka.ports import Admin, Answer, Clock, Ports, SeenTopic, TopicPartition

# Time-out of one question to a broker. After that the broker is down, and the loop tries again.
QUESTION_S = 10.0
# A broker answers at the first byte, so a record waits for nothing. An empty fetch waits 0.2 s: an
# idle worker makes five fetches a second to each broker, and a partition that is assigned or
# resumed meanwhile waits for the end of one (ADR 3). Under load records pile up between two.
FETCHING = {
    "fetch.min.bytes": 1,
    "fetch.wait.max.ms": 200,
    "fetch.error.backoff.ms": 50,
    "fetch.queue.backoff.ms": 5,
    # Half records are eight times as large as ops. With larger fetches, half records would be read
    # far ahead of the ops that decide them, and take memory.
    "max.partition.fetch.bytes": 524_288,
    # Bytes of one answer of a broker. Together with the queue, this is the most by which one turn
    # of the loop exceeds the budgets of memory.
    "fetch.max.bytes": 16_777_216,
    "queued.min.messages": 10_000,
    "queued.max.messages.kbytes": 8_192,
}


@dataclass(frozen=True, slots=True)
class SlotIds:
    """Kafka's ids of a slot."""

    group_instance_id: str
    transactional_id_prefix: str


def client_config(config: CheckerConfig) -> dict[str, Any]:
    """Return the properties of all clients of a worker, with the user's own."""
    return {
        **RECONNECTING,  # first: the user's properties override it
        **config.kafka,
        "bootstrap.servers": config.bootstrap_servers,
        "allow.auto.create.topics": False,
        # With the default of 100 ms, back-to-back kafka_txns wait 8 times longer.
        "retry.backoff.ms": 1,
    }


# A member that misses all heartbeats of a session loses its partitions. Kafka recommends three of
# them or more: ten of a short session, and one a second of a long one, which costs nothing.
_HEARTBEATS_A_SESSION = 10
_HEARTBEAT_MS_MIN, _HEARTBEAT_MS_MAX = 100, 1_000


def member_config(config: CheckerConfig, group_instance_id: str) -> dict[str, Any]:
    """Return the properties of a consumer that is a static member of the group."""
    return {
        **FETCHING,  # first: the user's properties override it
        **client_config(config),
        "group.id": config.names.daemon_group,
        "group.instance.id": group_instance_id,
        "session.timeout.ms": config.session_timeout_ms,
        "heartbeat.interval.ms": _heartbeat_ms(config.session_timeout_ms),
        "partition.assignment.strategy": "range",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "check.crcs": True,
    }


def _heartbeat_ms(session_timeout_ms: int) -> int:
    share_ms = session_timeout_ms // _HEARTBEATS_A_SESSION
    return max(_HEARTBEAT_MS_MIN, min(_HEARTBEAT_MS_MAX, share_ms))


def unjoined(config: CheckerConfig) -> dict[str, Any]:
    """Return the further properties of a consumer that has the group's rights and never joins."""
    return {
        "group.id": config.names.daemon_group,
        # The client compares the user's max.poll.interval.ms with this, even if it never joins.
        "session.timeout.ms": config.session_timeout_ms,
    }


_log = logging.getLogger("halfbridge.checker")
# Time-out of the questions before any broker has answered. Short, so that a wrong bootstrap address
# is reported quickly. The client keeps connecting between two questions, so slower brokers are
# found as well.
FIRST_QUESTION_S = 2.0
# How much longer than the question's time-out to wait: the client's own error names the reason.
_CLIENT_GRACE_S = 1.0


@dataclass(frozen=True, slots=True)
class EndAnswer:
    """The end of a partition (read_uncommitted): the answer to the question with `token`."""

    topic: str
    partition: int
    token: int
    end: int


class Ranges:
    """A question to brokers that was sent: where partitions begin and end (read_uncommitted)."""

    def __init__(self, admin: Admin, wanted: Iterable[TopicPartition]) -> None:
        places = list(wanted)
        self._firsts = admin.ask_ends(places, Edge.START, QUESTION_S)
        self._ends = admin.ask_ends(places, Edge.END, QUESTION_S)

    @property
    def is_over(self) -> bool:
        """Whether `answers` returns without waiting."""
        return all(each.done() for each in (*self._firsts.values(), *self._ends.values()))

    def answers(self) -> dict[TopicPartition, tuple[int, int] | InputLostError]:
        """Return log start and end of each partition, or why its broker did not answer; blocks."""
        return {place: self._range_of(place) for place in self._firsts}

    def _range_of(self, place: TopicPartition) -> tuple[int, int] | InputLostError:
        try:
            return self._firsts[place].result(), self._ends[place].result()
        except KafkaFailure as failure:
            topic, number = place
            return InputLostError(f"log end of {topic}[{number}] cannot be read: {failure}")


@dataclass(frozen=True, slots=True)
class SettingsAnswer:
    """The settings of a topic, or why they are not known.

    Attributes:
        settings: Name of each setting -> value; None: not known.
        why: The error in place of the settings.
        is_silent: No broker answered; a later question may succeed.
    """

    settings: Mapping[str, str] | None
    why: str = ""
    is_missing: bool = False
    is_silent: bool = False


class SettingsQuestion:
    """A question to brokers that was sent: the settings of topics."""

    def __init__(self, admin: Admin, topics: Iterable[str], clock: Clock) -> None:
        self._answers = admin.ask_settings(topics, QUESTION_S)
        self._clock = clock

    @property
    def is_over(self) -> bool:
        """Whether `answers` returns without waiting."""
        return all(each.done() for each in self._answers.values())

    def answers(self, wait_s: float = QUESTION_S + _CLIENT_GRACE_S) -> dict[str, SettingsAnswer]:
        """Return the answer for each topic; blocks for at most about `wait_s`."""
        until = self._clock.monotonic() + wait_s
        return {
            topic: _settings_of(answer, max(0.0, until - self._clock.monotonic()))
            for topic, answer in self._answers.items()
        }


class Questions:
    """Asks brokers without delaying the loop; `answers` returns the answers.

    A client that no broker answers for `REPLACED_AFTER_S` is replaced if a new client is
    answered. librdkafka's client may stay silent after its broker was frozen and restarted.
    """

    def __init__(
        self, config: CheckerConfig, ports: Ports, on_replaced: Callable[[], object] = lambda: None
    ) -> None:
        self._bootstrap_servers = config.bootstrap_servers
        self._clock = ports.clock
        self._kafka = ports.kafka
        self._properties = {
            **client_config(config),
            "error_cb": ErrorLog(_log, ports.clock).note,
        }
        self._on_replaced = on_replaced
        self._silence = UnansweredTimer()
        self._admin = self._kafka.admin(self._properties)
        self._open: dict[TopicPartition, tuple[int, Answer[int]]] = {}
        self._were_answered = False

    def ask_end(self, topic: str, partition: int, token: int) -> None:
        """Ask for the high watermark, which an open kafka_txn with copies does not hold back."""
        place = (topic, partition)
        if place not in self._open:
            answers = self._admin.ask_ends([place], Edge.END, QUESTION_S)
            self._open[place] = token, answers[place]

    def answers(self) -> Iterator[EndAnswer]:
        """Yield the new answers."""
        self._admin.poll(0)  # serves the error callback
        for place in [place for place, (_, answer) in self._open.items() if answer.done()]:
            token, answer = self._open.pop(place)
            with suppress(KafkaFailure):  # the ledger still waits, and asks again
                yield EndAnswer(*place, token, answer.result())

    def ask_ranges(self, wanted: Iterable[TopicPartition]) -> Ranges:
        """Ask where partitions begin and end (read_uncommitted); each has an answer of its own."""
        return Ranges(self._admin, wanted)

    def ask_stable_ends(self, wanted: Iterable[TopicPartition]) -> Ends:
        """Ask where partitions end for read_committed consumers (last stable offset)."""
        return Ends(self._admin, wanted, QUESTION_S, edge=Edge.STABLE_END)

    def ask_settings(self, topics: Iterable[str]) -> SettingsQuestion:
        """Ask for the settings of at least one topic."""
        return SettingsQuestion(self._admin, topics, self._clock)

    def topics(self) -> dict[str, SeenTopic]:
        """Return all topics that the daemon may see; blocks.

        Raises InputLostError: no broker answered; the worker tries again.
        """
        asked_at = self._clock.monotonic()
        try:
            topics = self._topics(asked_at)
        except KafkaFailure as failure:
            self._silence.goes_on(asked_at)
            where, said = self._bootstrap_servers, failure.text
            raise InputLostError(f"no Kafka broker answers at {where}: {said}") from failure
        except ConfigError as error:  # for example while a certificate is being replaced
            raise InputLostError(f"no new admin client can be made yet: {error}") from error
        self._silence.end()
        self._were_answered = True
        return topics

    def _topics(self, now: float) -> dict[str, SeenTopic]:
        """Return all topics; after a long silence a new client asks, and is kept if answered."""
        if not self._silence.is_over_limit(now):
            return self._admin.topics(QUESTION_S if self._were_answered else FIRST_QUESTION_S)
        # A further new client only after a further silence: the old one may recover by itself.
        self._silence.end()
        another = self._kafka.admin(self._properties)
        topics = another.topics(QUESTION_S)
        self._admin = another
        self._open = {}  # questions of the old client: they are asked again
        _log.warning("brokers did not answer the admin client, but answer a new one: replaced")
        self._on_replaced()
        return topics

    def may_write(self, topics: Sequence[str]) -> dict[str, bool | None]:
        """Return whether the daemon may write; None: unknown.

        Raises InputLostError: no broker answers; the worker tries again.
        """
        answers = self._admin.ask_rights(topics, QUESTION_S)
        return {topic: _may_write(answer) for topic, answer in answers.items()}


def _may_write(answer: Answer[bool | None]) -> bool | None:
    try:
        return answer.result()
    except KafkaFailure as failure:
        if failure.code == Code.TOPIC_AUTHORIZATION_FAILED:
            return False
        if failure.code > 0:  # a broker's answer about something else, such as a missing topic
            return None
        raise InputLostError(f"rights cannot be read: {failure}") from failure


def _settings_of(answer: Answer[dict[str, str]], wait_s: float) -> SettingsAnswer:
    try:
        return SettingsAnswer(answer.result(wait_s))
    except KafkaFailure as failure:
        is_missing = failure.code in NO_SUCH_TOPIC
        is_refused = failure.code == Code.TOPIC_AUTHORIZATION_FAILED
        return SettingsAnswer(
            None, str(failure), is_missing=is_missing, is_silent=not (is_missing or is_refused)
        )


# Three questions without an answer (`QUESTION_S`). A client reconnects by itself in less time, even
# after its broker has restarted.
REPLACED_AFTER_S = 30.0


class UnansweredTimer:
    """How long a client has not been answered. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._since: float | None = None

    def goes_on(self, since: float) -> None:
        """Record that a question or record of `since` has no answer."""
        self._since = since if self._since is None else self._since

    def end(self) -> None:
        """Record an answer."""
        self._since = None

    def is_over_limit(self, now: float) -> bool:
        """Return whether the client has been unanswered for REPLACED_AFTER_S."""
        return self._since is not None and now - self._since >= REPLACED_AFTER_S

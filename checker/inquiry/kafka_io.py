"""Questions to the brokers: where partitions end, which topics there are."""

from __future__ import annotations

import logging
import queue
import threading
from concurrent.futures import (
    TimeoutError,  # noqa: A004  # its own on 3.10
    wait,
)
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AclOperation, ConfigResource, OffsetSpec

from halfbridge.bridge.admin_client.kafka_io import AdminClient
from halfbridge.bridge.inquiry.kafka_io import Ends, ask_offsets, offset_of
from halfbridge.bridge.kafka_io import made
from halfbridge.bridge.trouble import Troubles
from halfbridge.checker.clients import QUESTION_S, client_config
from halfbridge.checker.failures import InputLostError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from halfbridge.checker.config import CheckerConfig

_log = logging.getLogger("halfbridge.checker")

# How much later than its own limit the client is given up: it knows the reason.
_CLIENT_GRACE_S = 1.0
_NO_SUCH_TOPIC = frozenset(
    (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_EXCEPTION)  # an impossible name
)


@dataclass(frozen=True, slots=True)
class EndAnswer:
    """The end of a partition (read_uncommitted), for whoever asked with `token`."""

    topic: str
    partition: int
    token: int
    end: int


class Ranges:
    """Where partitions begin and end (read_uncommitted): a question under way."""

    def __init__(self, admin: Any, wanted: Iterable[tuple[str, int]]) -> None:
        places = [TopicPartition(topic, partition) for topic, partition in wanted]
        self._firsts = ask_offsets(admin, places, OffsetSpec.earliest(), QUESTION_S)
        self._ends = ask_offsets(admin, places, OffsetSpec.latest(), QUESTION_S)

    @property
    def is_over(self) -> bool:
        """Whether `answers` has not to wait."""
        return all(each.done() for each in (*self._firsts.values(), *self._ends.values()))

    def answers(self) -> dict[tuple[str, int], tuple[int, int] | InputLostError]:
        """Return log start and end of each partition, or why its broker did not say; blocks."""
        return {
            (place.topic, place.partition): self._range_of(place) for place in list(self._firsts)
        }

    def _range_of(self, place: TopicPartition) -> tuple[int, int] | InputLostError:
        try:
            first = offset_of(self._firsts[place], QUESTION_S)
            return first, offset_of(self._ends[place], QUESTION_S)
        except KafkaException as error:
            name = f"{place.topic}[{place.partition}]"
            return InputLostError(f"log end of {name} cannot be read: {error}")


@dataclass(frozen=True, slots=True)
class SettingsAnswer:
    """The settings of a topic, or why nobody knows them.

    Attributes:
        settings: Kafka's name of each setting to its value; None: not known.
        why: What was said in place of them.
        is_missing: There is no such topic.
        is_silent: No broker answered: another time one may.
    """

    settings: Mapping[str, str] | None
    why: str = ""
    is_missing: bool = False
    is_silent: bool = False


class SettingsQuestion:
    """The settings of topics: a question under way."""

    def __init__(self, admin: Any, topics: Iterable[str]) -> None:
        resources = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics]
        self._futures = admin.describe_configs(resources, request_timeout=QUESTION_S)

    @property
    def is_over(self) -> bool:
        """Whether `answers` has not to wait."""
        return all(future.done() for future in self._futures.values())

    def answers(self, wait_s: float = QUESTION_S + _CLIENT_GRACE_S) -> dict[str, SettingsAnswer]:
        """Return what was said of each topic; blocks for at most about `wait_s`."""
        wait(self._futures.values(), wait_s)
        return {resource.name: _settings_of(future) for resource, future in self._futures.items()}


class Questions:
    """Asks brokers without holding up the loop; answers are fetched by `answers`."""

    def __init__(self, config: CheckerConfig) -> None:
        self._bootstrap_servers = config.bootstrap_servers
        troubles = {"error_cb": Troubles(_log).note}
        self._admin = made(AdminClient, {**client_config(config), **troubles})
        self._answers: queue.SimpleQueue[EndAnswer | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._open: set[tuple[str, int]] = set()

    def ask_end(self, topic: str, partition: int, token: int) -> None:
        """Ask where a partition ends, read_uncommitted (the LSO would lie while a put-back is
        open); one question a partition at a time.
        """  # noqa: D205
        with self._lock:
            if (topic, partition) in self._open:
                return
            self._open.add((topic, partition))
        where = TopicPartition(topic, partition)
        futures = ask_offsets(self._admin, [where], OffsetSpec.latest(), QUESTION_S)

        def note(future: Any) -> None:
            with self._lock:
                self._open.discard((topic, partition))
            with suppress(KafkaException):  # asked again by and by
                self._answers.put(EndAnswer(topic, partition, token, offset_of(future, QUESTION_S)))

        futures[where].add_done_callback(note)

    def answers(self) -> Iterable[EndAnswer]:
        """Yield the answers that have come."""
        self._admin.poll(0)  # tells what it noted of its connections
        while not self._answers.empty():
            answer = self._answers.get()
            if answer is not None:
                yield answer

    def ask_ranges(self, wanted: Iterable[tuple[str, int]]) -> Ranges:
        """Ask where partitions begin and end, read_uncommitted; one may answer, another not."""
        return Ranges(self._admin, wanted)

    def ask_stable_ends(self, wanted: Iterable[tuple[str, int]]) -> Ends:
        """Ask up to where partitions can be read, read_committed."""
        return Ends(self._admin, wanted, QUESTION_S, isolation=IsolationLevel.READ_COMMITTED)

    def ask_settings(self, topics: Iterable[str]) -> SettingsQuestion:
        """Ask for the settings of topics, at least one."""
        return SettingsQuestion(self._admin, topics)

    def partitions(self) -> dict[str, int]:
        """Return topic -> number of partitions, of all topics this daemon may see; blocks.

        Raises:
            InputLostError: no broker answered.
        """
        try:
            topics = self._admin.list_topics(timeout=QUESTION_S).topics
        except KafkaException as error:
            self._admin.poll(0)  # tells why: the call itself says no more than that it failed
            where, said = self._bootstrap_servers, error.args[0].str()
            raise InputLostError(f"no Kafka broker answers at {where}: {said}") from error
        return {name: len(one.partitions) for name, one in topics.items() if one.error is None}

    def may_write(self, topics: Sequence[str]) -> dict[str, bool | None]:
        """Return for each topic whether this daemon may write to it; None: the broker is silent.

        Raises:
            InputLostError: no broker answered.
        """
        futures = self._admin.describe_topics(
            TopicCollection(list(topics)),
            include_authorized_operations=True,
            request_timeout=QUESTION_S,
        )
        return {topic: _may_write(future) for topic, future in futures.items()}


def _may_write(future: Any) -> bool | None:
    try:
        operations = future.result(QUESTION_S + _CLIENT_GRACE_S).authorized_operations
    except KafkaException as error:
        code = error.args[0].code()
        if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            return False
        if code > 0:  # a broker's answer, which says nothing of rights: the topic is gone, say
            return None
        raise InputLostError(f"rights cannot be read: {error}") from error
    except TimeoutError as error:
        raise InputLostError(f"rights cannot be read: {error}") from error
    return None if operations is None else AclOperation.WRITE in operations


def _settings_of(future: Any) -> SettingsAnswer:
    if not future.done():
        return SettingsAnswer(None, "no broker answered in time", is_silent=True)
    error = future.exception()
    if error is None:
        return SettingsAnswer({key: str(each.value) for key, each in future.result().items()})
    code = error.args[0].code() if isinstance(error, KafkaException) else None
    return SettingsAnswer(
        None,
        str(error),
        is_missing=code in _NO_SUCH_TOPIC,
        is_silent=code not in _NO_SUCH_TOPIC | {KafkaError.TOPIC_AUTHORIZATION_FAILED},
    )

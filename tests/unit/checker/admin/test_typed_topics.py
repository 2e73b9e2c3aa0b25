"""Real topics with a type, beside clients that run: a whole installation in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from halfbridge.bridge import InvalidMessageError, Message, MessageView, Resolution, TopicSetupError
from halfbridge.bridge.daemon_settings import FOLLOW_S
from halfbridge.checker.admin.appending import appending
from halfbridge.checker.admin.cluster import Cluster
from halfbridge.checker.admin.operator_log import OperatorLog
from halfbridge.checker.admin.topics import RealTopic, Typed, create_real_topic
from halfbridge.checker.errors import AdminError
from halfbridge.serde.records import DeadReason
from halfbridge.serde.settings_topic import TopicType, type_key
from halfbridge.testkit.memory import MemoryStack


def _never(_view: MessageView) -> Resolution:
    return Resolution.UNKNOWN


def _cluster(stack: MemoryStack) -> Cluster:
    return Cluster("memory", ports=stack.machine.ports(stack.machine.process("operator")))


def _create(stack: MemoryStack, name: str, kind: TopicType) -> Typed:
    cluster, names = _cluster(stack), stack.config.names
    with appending(cluster) as appender:
        log = OperatorLog(cluster, names, appender, who="ada@h")
        return create_real_topic(cluster, names, log, appender, RealTopic(name, kind, 1, 1))


def test_what_is_no_message_is_refused_as_such_beside_a_plain_topic() -> None:
    """The error tells how to send, whatever types topics have."""
    given: Any = "orders"
    with MemoryStack() as stack, stack.producer("g", checker=_never) as producer:
        assert _create(stack, "clicks", TopicType.PLAIN)
        stack.advance(FOLLOW_S)
        with pytest.raises(InvalidMessageError, match="send takes a Message"):
            producer.begin().send(given)


def test_running_clients_learn_of_a_type_and_of_its_change() -> None:
    """A plain topic is refused by send and, where it is bound, by begin; others are not."""
    with MemoryStack() as stack, stack.producer("g", checker=_never) as producer:
        assert _create(stack, "clicks", TopicType.PLAIN) == (True, None)
        assert _create(stack, "orders", TopicType.TRANSACTION)
        stack.advance(FOLLOW_S)
        transaction = producer.begin()
        with pytest.raises(TopicSetupError, match="topic clicks is plain"):
            transaction.send(Message("clicks", value=b"1"))
        transaction.send(Message("orders", value=b"1"))
        transaction.commit()
        bound = stack.producer("h", checker=_never, topics=["clicks"])
        with bound, pytest.raises(TopicSetupError, match="topic clicks is plain"):
            bound.begin()

        assert _create(stack, "clicks", TopicType.TRANSACTION) == (False, TopicType.PLAIN)
        stack.advance(FOLLOW_S)
        with producer.begin() as transaction:
            transaction.send(Message("clicks", value=b"2"))
        assert len(stack.read_committed("clicks", "orders", count=2)) == 2


def test_the_daemon_delivers_to_no_plain_topic(tmp_path: Path) -> None:
    """By its policy file, whatever a client looks at."""
    policy = tmp_path / "policy.toml"
    policy.write_text('default = "allow"\n[topics]\n"clicks" = "plain"\n', "utf-8")
    with MemoryStack(policy_file=policy) as stack:
        stack.create_topic("clicks")
        with stack.producer("g", checker=_never) as producer, producer.begin() as transaction:
            transaction.send(Message("clicks", value=b"1"))
        stack.wait_until_decided()
        assert stack.read_committed("clicks") == []
        assert [each.letter.reason for each in stack.dead_letters()] == [DeadReason.NOT_ALLOWED]


def test_what_cannot_be_read_is_no_type() -> None:
    """And internal names are never real topics."""
    with MemoryStack() as stack:
        _create(stack, "clicks", TopicType.PLAIN)
        with appending(_cluster(stack)) as appender:
            place = (stack.config.names.settings, 0)
            appender.append(place, b"nonsense", type_key("clicks"))
        with stack.producer("g", checker=_never, topics=["clicks"]) as producer:
            producer.begin()
        with pytest.raises(AdminError, match="is an internal name"):
            _create(stack, stack.config.names.half, TopicType.PLAIN)

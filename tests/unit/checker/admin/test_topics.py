"""Topic settings that stop a pair, that alarm, and that give advice."""

from pathlib import Path
from typing import Any

import pytest

from halfbridge.bridge import InvalidMessageError, Message, MessageView, Resolution, TopicSetupError
from halfbridge.bridge.daemon_settings import FOLLOW_S
from halfbridge.checker.admin.appending import appending
from halfbridge.checker.admin.cluster import Cluster
from halfbridge.checker.admin.operator_log import OperatorLog
from halfbridge.checker.admin.real_topics import SHOWN_MAX, Flaws, find_flaws, number, problems_text
from halfbridge.checker.admin.topics import RealTopic, Typed, create_real_topic
from halfbridge.checker.admin.words import counted
from halfbridge.checker.errors import AdminRequestError
from halfbridge.serde.records import DeadReason
from halfbridge.serde.settings_topic import TopicType, type_key
from halfbridge.serde.topics import TopicNames
from halfbridge.testkit.memory import MemoryStack

NAMES = TopicNames("eu.")
AGE_MS = 3 * 24 * 3_600_000
MIB = 1_048_588
COPY_BYTES = 128 * 1024
CHECK = NAMES.check("g")


def settings(**changes: str) -> dict[str, str]:
    """Return the settings of half and op topic; a change is given as max_message_bytes="1"."""
    made = {
        "message.timestamp.type": "LogAppendTime",
        "cleanup.policy": "delete",
        "retention.ms": str(2 * AGE_MS),
        "retention.bytes": "-1",
        "max.message.bytes": str(MIB),
    }
    return {**made, **{key.replace("_", "."): value for key, value in changes.items()}}


def flaws_with(topic: str = "", **changes: str) -> Flaws:
    """Return the flaws if one topic has other settings than `topics create` gives it."""
    copies = {"max_message_bytes": str(MIB + COPY_BYTES), "message_timestamp_type": "CreateTime"}
    known = {
        NAMES.half: settings(),
        NAMES.op: settings(),
        NAMES.dead: settings(**copies, retention_ms="1"),
        CHECK: settings(**copies, retention_ms="1"),
        "eu.orders": settings(cleanup_policy="compact", retention_ms="1"),
    }
    if topic:
        known[topic] = {**known[topic], **settings(**changes)} if changes else {}
    return find_flaws(NAMES, known, transaction_age_ms_max=AGE_MS, bootstrap_servers="k:1")


def test_nothing_is_wrong_with_what_topics_create_makes() -> None:
    """Settings of `topics create` have no flaw, nor have dead-letter retention and real topics."""
    assert flaws_with() == Flaws()


@pytest.mark.parametrize("topic", [NAMES.half, NAMES.op])
@pytest.mark.parametrize(
    ("setting", "wrong"),
    [
        ("message.timestamp.type", "CreateTime"),
        ("cleanup.policy", "compact"),
        ("cleanup.policy", "compact,delete"),
    ],
)
def test_what_makes_half_and_op_topic_untrue_stops(topic: str, setting: str, wrong: str) -> None:
    """CreateTime and compaction of half and op topic stop the pair."""
    (problem,) = flaws_with(topic, **{setting.replace(".", "_"): wrong}).stopping
    assert (problem.subject, problem.setting) == (topic, setting)
    assert f" {topic} --set {setting}=" in problem.fix


@pytest.mark.parametrize(
    ("topic", "setting", "wrong"),
    [
        (NAMES.half, "retention.ms", str(2 * AGE_MS - 1)),
        (NAMES.half, "retention.bytes", "1000000000"),
        (NAMES.half, "max.message.bytes", str(MIB - 1)),
        (NAMES.op, "retention.ms", str(2 * AGE_MS - 1)),
        (NAMES.op, "max.message.bytes", str(MIB - 1)),
        (NAMES.dead, "max.message.bytes", str(MIB + COPY_BYTES - 1)),
        (NAMES.dead, "cleanup.policy", "compact"),
        (CHECK, "max.message.bytes", str(MIB + COPY_BYTES - 1)),
    ],
)
def test_what_may_lose_or_fail_later_alarms(topic: str, setting: str, wrong: str) -> None:
    """Short retention and small size limits are alarms, and do not stop the pair."""
    found = flaws_with(topic, **{setting.replace(".", "_"): wrong})
    assert found.stopping == ()
    assert (topic, setting) in {(each.subject, each.setting) for each in found.alarms}


def test_a_half_topic_that_was_raised_alone() -> None:
    """A larger half topic needs larger dead-letter and check topics; real topics are advice."""
    found = flaws_with(NAMES.half, max_message_bytes="4000000")
    wanted = {(topic, str(4_000_000 + COPY_BYTES)) for topic in (NAMES.dead, CHECK)}
    assert {(each.subject, each.fix.rpartition("=")[2]) for each in found.alarms} == wanted
    (small,) = found.advice
    assert small.subject == "eu.orders"
    assert small.fix.endswith(f"max.message.bytes={4_000_000 - 64 * 1024}")


@pytest.mark.parametrize("topic", [NAMES.half, NAMES.op, NAMES.dead, CHECK])
def test_what_cannot_be_read_is_no_flaw(topic: str) -> None:
    """Unknown settings are no flaw, e.g. without the right to read them."""
    assert flaws_with(topic) == Flaws()


def test_many_problems_are_reported_by_some() -> None:
    """The text has at most SHOWN_MAX problems and refers to `topics check` for all."""
    problem = flaws_with(NAMES.half, retention_ms="1").alarms[0]
    text = problems_text((problem,) * (SHOWN_MAX + 2))
    assert text.count("halfbridge topics alter") == SHOWN_MAX
    assert text.endswith("and 2 more: see `halfbridge topics check`")
    assert problems_text(()) == ""


@pytest.mark.parametrize(("value", "wanted"), [("12", 12), ("-1", -1), ("", None), ("much", None)])
def test_numbers(value: str, wanted: int | None) -> None:
    """A text that is not a number gives None."""
    assert number(value) == wanted


# --- real topics with a type, with running clients: a whole installation in memory ---------


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
    """The error explains the argument of send, also if plain topics exist."""
    given: Any = "orders"
    with MemoryStack() as stack, stack.producer("g", checker=_never) as producer:
        assert _create(stack, "clicks", TopicType.PLAIN)
        stack.advance(FOLLOW_S)
        with pytest.raises(InvalidMessageError, match="send takes a Message"):
            producer.begin().send(given)


def test_running_clients_learn_of_a_type_and_of_its_change() -> None:
    """Send, or begin of a bound producer, rejects a plain topic until its type changes."""
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
    """A message to a topic that the daemon's policy types as plain becomes NOT_ALLOWED."""
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
    """A type record that cannot be read gives no type; an internal name is rejected."""
    with MemoryStack() as stack:
        _create(stack, "clicks", TopicType.PLAIN)
        with appending(_cluster(stack)) as appender:
            place = (stack.config.names.settings, 0)
            appender.append(place, b"nonsense", type_key("clicks"))
        with stack.producer("g", checker=_never, topics=["clicks"]) as producer:
            producer.begin()
        with pytest.raises(AdminRequestError, match="is an internal name"):
            _create(stack, stack.config.names.half, TopicType.PLAIN)


# --- words in texts for operators ----------------------------------------------------------


def test_a_noun_goes_with_its_number() -> None:
    """A noun has no s for the count 1 only."""
    reported = [counted(count, "message") for count in range(3)]
    assert reported == ["0 messages", "1 message", "2 messages"]

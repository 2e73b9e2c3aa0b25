"""Dead letters as proof for `checker init`, and the operators' switch."""

from collections.abc import Iterator
from typing import Any

import pytest

from halfbridge.bridge import (
    Message,
    MessageView,
    Resolution,
    RetriableError,
    TransactionsRejectedError,
)
from halfbridge.bridge.daemon_settings import FOLLOW_S
from halfbridge.checker.admin.appending import appending
from halfbridge.checker.admin.cluster import Cluster
from halfbridge.checker.admin.init import _shows_a_decision
from halfbridge.checker.admin.operator_log import (
    ActionFilter,
    OperatorLog,
    SwitchChange,
    find_switch,
    read,
    turn_switch,
)
from halfbridge.checker.admin.read import LogRecord
from halfbridge.checker.errors import AdminSetupError
from halfbridge.serde.avro import DEAD_LETTER
from halfbridge.serde.headers import DEAD
from halfbridge.serde.records import ActionOutcome, DeadDecision, DeadLetter, DeadReason
from halfbridge.serde.settings_topic import SWITCH_KEY
from halfbridge.testkit.memory import MemoryStack


def _letter(reason: DeadReason, decision: DeadDecision) -> LogRecord:
    letter = DeadLetter(reason, "", 0, 0, 0, "half", 0, 0, decision)
    return LogRecord(0, 0, 0, None, None, [(DEAD, DEAD_LETTER.encode(letter))])


@pytest.mark.parametrize(
    ("reason", "decision", "says"),
    [
        (DeadReason.TOO_LARGE, DeadDecision.NONE, False),
        (DeadReason.TOO_LARGE, DeadDecision.COMMIT, True),
        (DeadReason.TOO_LARGE, DeadDecision.DISCARD, True),
        # A dead letter of version 1 has no decision.
        (DeadReason.NOT_ALLOWED, DeadDecision.NONE, True),
    ],
)
def test_a_message_that_no_transaction_can_have_proves_nothing(
    reason: DeadReason, decision: DeadDecision, *, says: bool
) -> None:
    """A TOO_LARGE dead letter proves a decision only if it contains one."""
    assert _shows_a_decision(_letter(reason, decision)) is says


@pytest.mark.parametrize("headers", [[], [(DEAD, None)], [(DEAD, b"broken")]])
def test_a_letter_that_cannot_be_read_counts_as_before(headers: list[Any]) -> None:
    """A dead letter whose header is missing or cannot be read counts as proof of a decision."""
    assert _shows_a_decision(LogRecord(0, 0, 0, None, None, headers))


# --- the operators' switch, set while clients run: whole installations in memory -----------


@pytest.fixture
def stack() -> Iterator[MemoryStack]:
    """An installation with a real topic."""
    with MemoryStack() as made:
        made.create_topic("orders")
        yield made


def _cluster(stack: MemoryStack) -> Cluster:
    return Cluster("memory", ports=stack.machine.ports(stack.machine.process("operator")))


def _turn(
    stack: MemoryStack, *, is_rejecting: bool, reason: str = "the database moves"
) -> SwitchChange:
    cluster, names = _cluster(stack), stack.config.names
    with appending(cluster) as appender:
        log = OperatorLog(cluster, names, appender, who="ada@h")
        return turn_switch(cluster, names, log, appender, is_rejecting=is_rejecting, reason=reason)


def _write(stack: MemoryStack, value: bytes) -> None:
    with appending(_cluster(stack)) as appender:
        appender.append((stack.config.names.settings, 0), value, SWITCH_KEY)


def _never(_view: MessageView) -> Resolution:
    return Resolution.UNKNOWN


def test_running_clients_follow(stack: MemoryStack) -> None:
    """Begin and send raise the operator's reason until the switch is reset; commit works."""
    message = Message("orders", value=b"1")
    with stack.producer("g", checker=_never) as producer:
        open_one, half_sent = producer.begin(), producer.begin()
        half_sent.send(message)
        assert _turn(stack, is_rejecting=True).holds
        stack.advance(FOLLOW_S)
        with pytest.raises(
            TransactionsRejectedError, match=r"ada@h.*: the database moves"
        ) as reported:
            producer.begin()
        assert reported.value.reason == "the database moves"
        assert isinstance(reported.value, RetriableError)
        for transaction in (open_one, half_sent):
            with pytest.raises(TransactionsRejectedError):
                transaction.send(message)
        with pytest.raises(TransactionsRejectedError):
            producer.send_in_transaction(message, lambda *_: Resolution.COMMIT)
        half_sent.commit()
        assert [each.value for each in stack.read_committed("orders", count=1)] == [b"1"]

        assert _turn(stack, is_rejecting=False, reason="moved").holds
        stack.advance(FOLLOW_S)
        with producer.begin() as transaction:
            transaction.send(message)
    assert len(stack.read_committed("orders", count=2)) == 2


def test_a_client_that_starts_begins_nothing(stack: MemoryStack) -> None:
    """The first begin waits until the switch is read, and is rejected."""
    _turn(stack, is_rejecting=True)
    with stack.producer("g", checker=_never) as producer, pytest.raises(TransactionsRejectedError):
        producer.begin()


def test_what_is_open_is_checked_and_delivered(stack: MemoryStack) -> None:
    """The daemon checks and delivers transactions that the switch left undecided."""
    with stack.producer("g", checker=lambda _view: Resolution.COMMIT) as producer:
        producer.begin().send(Message("orders", value=b"1"))
        _turn(stack, is_rejecting=True)
        assert len(stack.read_committed("orders", count=1)) == 1


@pytest.mark.parametrize("value", [b"nonsense", b"", b"x" * 5_000])
def test_what_cannot_be_read_stops_nobody(stack: MemoryStack, value: bytes) -> None:
    """A switch that cannot be read, or was deleted, rejects nothing."""
    _turn(stack, is_rejecting=True)
    _write(stack, value)
    assert not find_switch(_cluster(stack), stack.config.names).is_rejecting
    with stack.producer("g", checker=_never) as producer:
        producer.begin()


def test_without_a_settings_topic_clients_begin(stack: MemoryStack) -> None:
    """Clients begin without a settings topic; the command's error names `topics create`."""
    stack.machine.broker.delete_topic(stack.config.names.settings)
    with stack.producer("g", checker=_never) as producer:
        producer.begin()
    with pytest.raises(AdminSetupError, match="run: halfbridge topics create") as refused:
        _turn(stack, is_rejecting=True)
    assert refused.value.topics == (stack.config.names.settings,)


def test_each_change_is_recorded_in_the_audit_topic(stack: MemoryStack) -> None:
    """Each action is stored with the state before and after, a repetition too."""
    for is_rejecting in (True, True, False):
        _turn(stack, is_rejecting=is_rejecting)
    found = read(_cluster(stack), stack.config.names, ActionFilter(limit=9))
    actions = [each.action for each in found if each.action]
    assert [(each.action, each.outcome, each.before, each.after) for each in actions] == [
        ("transactions reject", ActionOutcome.INTENDED, "accepting", "rejecting"),
        ("transactions reject", ActionOutcome.DONE, "accepting", "rejecting"),
        ("transactions reject", ActionOutcome.INTENDED, "rejecting", "rejecting"),
        ("transactions reject", ActionOutcome.DONE, "rejecting", "rejecting"),
        ("transactions accept", ActionOutcome.INTENDED, "rejecting", "accepting"),
        ("transactions accept", ActionOutcome.DONE, "rejecting", "accepting"),
    ]

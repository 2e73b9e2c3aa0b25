"""The audit topic: each action of an operator is stored there before it takes effect.

An action has two records: INTENDED, and later the outcome. A command that dies between them leaves
only the first; a repeated command is another action. `set_switch` is the action that stops new
transactions of all clients, or accepts them again.
"""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from halfbridge.checker.errors import AdminError, InDoubtError
from halfbridge.serde.errors import DecodeError
from halfbridge.serde.operator_actions import FIELD_BYTES_MAX, decode_action, encode_action
from halfbridge.serde.records import ActionOutcome, OperatorAction
from halfbridge.serde.settings_topic import SWITCH_KEY, TransactionsSwitch, encode_switch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from halfbridge.checker.admin.appending import Appender
    from halfbridge.checker.admin.cluster import Cluster
    from halfbridge.serde.topics import TopicNames

_PARTITION = 0  # the only one: the log has one order
# Newest records that `read` reads: a few seconds, however long the log is.
READ_RECORDS_MAX = 1_000_000
_PROBLEM_CHARS_MAX = 200  # two lines of a terminal
_USE = "which keeps operators' actions"


class OperatorLog:
    """Writes an operator's actions. Not thread-safe."""

    def __init__(
        self, cluster: Cluster, names: TopicNames, appender: Appender, *, who: str
    ) -> None:
        self.who = who
        self._cluster, self._names, self._appender = cluster, names, appender
        self._is_there = False

    def record(
        self, action: str, subject: str, *, why: str, before: str, after: str
    ) -> OperatorAction:
        """Store that an action is intended; return the action, which may take effect now.

        `action` is in the words of the command, such as `tx commit`; `before` and `after` say how
        the subject is, and how it is meant to be.

        Raises:
            AdminError: not known to be stored, or no such topic: the action must not take effect;
                the operator follows the text, and runs the command again.
        """
        if not self._is_there:
            self._cluster.require(self._names, self._names.audit, _USE)
            self._is_there = True
        ports = self._cluster.ports
        intended = OperatorAction(
            action_id=ports.transaction_id(),
            at_ms=ports.clock.time_ms(),
            who=self.who,
            action=action,
            subject=subject,
            why=why,
            before=before,
            after=after,
            outcome=ActionOutcome.INTENDED,
        )
        self._append(intended)
        return intended

    def conclude(
        self, intended: OperatorAction, outcome: ActionOutcome, *, after: str
    ) -> OperatorAction:
        """Store and return how an action ended; `after` is the subject's state, or the fault."""
        concluded = intended._replace(
            at_ms=self._cluster.ports.clock.time_ms(), after=after, outcome=outcome
        )
        self._append(concluded)
        return concluded

    @contextmanager
    def recording_failure(self, *intended: OperatorAction) -> Iterator[None]:
        """Store that actions failed, or are in doubt, if the block raises AdminError."""
        try:
            yield
        except AdminError as error:
            in_doubt = isinstance(error, InDoubtError)
            outcome = ActionOutcome.IN_DOUBT if in_doubt else ActionOutcome.FAILED
            for each in intended:
                self.conclude(each, outcome, after=str(error))
            raise

    def _append(self, action: OperatorAction) -> None:
        place = (self._names.audit, _PARTITION)
        self._appender.append(place, encode_action(action), action.action_id.encode())


class KeptAction(NamedTuple):
    """A record of the audit topic."""

    offset: int
    append_ms: int  # when the broker stored the record, ms since 1970; 0: the broker does not say
    action: OperatorAction | None  # the record's content; None if it cannot be decoded
    problem: str = ""  # why the record cannot be read; empty where it can


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionFilter:
    """Which actions are asked for, the newest `limit`; an empty text excludes none."""

    since_ms: int = 0
    action: str = ""  # the action, or how it begins: `tx` means `tx commit` and `tx rollback`
    who: str = ""
    subject: str = ""
    limit: int

    def takes(self, kept: KeptAction) -> bool:
        """Tell whether a record is asked for; one that cannot be read is, where no text is."""
        if kept.append_ms < self.since_ms:
            return False
        if kept.action is None:
            return not (self.action or self.who or self.subject)
        found, wanted = kept.action, self.action
        return (
            (not wanted or found.action == wanted or found.action.startswith(f"{wanted} "))
            and self.who in ("", found.who)
            and self.subject in ("", found.subject)
        )


def read(
    cluster: Cluster,
    names: TopicNames,
    wanted: ActionFilter,
    *,
    on_left_out: Callable[[int], None] = lambda _: None,
) -> list[KeptAction]:
    """Return the newest records that are asked for, in the order of the log.

    `on_left_out` is called with the number of older records that were not read.
    """
    cluster.require(names, names.audit, _USE)
    start, end = cluster.watermarks(names.audit, _PARTITION)
    begin = max(start, end - READ_RECORDS_MAX)
    if begin > start:
        on_left_out(begin - start)
    found: deque[KeptAction] = deque(maxlen=wanted.limit)
    for record in cluster.read(names.audit, _PARTITION, start=begin, end=end):
        kept = _kept(record.offset, max(0, record.append_ms), record.value)
        if wanted.takes(kept):
            found.append(kept)
    return list(found)


def action_json(kept: KeptAction) -> dict[str, object]:
    """Return a record of the audit topic as JSON values."""
    place = {"offset": kept.offset, "append_ms": kept.append_ms}
    if kept.action is None:
        return {**place, "problem": kept.problem}
    return {**place, **kept.action._asdict(), "outcome": kept.action.outcome.value}


def reason_problem(reason: str) -> str:
    """Return why `reason` is no reason that can be kept; empty where it is one."""
    if not reason.strip():
        return "must not be empty"
    most = FIELD_BYTES_MAX["why"]
    size = len(reason.encode("utf-8", "backslashreplace"))
    return f"has {size} bytes, at most {most} are allowed" if size > most else ""


def _kept(offset: int, append_ms: int, value: bytes | None) -> KeptAction:
    if value is None:
        return KeptAction(offset, append_ms, None, "no value")
    try:
        return KeptAction(offset, append_ms, decode_action(value))
    except DecodeError as error:
        return KeptAction(offset, append_ms, None, error.reason[:_PROBLEM_CHARS_MAX])


_NOT_SET = TransactionsSwitch(is_rejecting=False, at_ms=0, who="", reason="")


class SwitchChange(NamedTuple):
    """A switch that was set; `holds` is False if another operator set the switch since."""

    before: TransactionsSwitch
    after: TransactionsSwitch
    holds: bool


def find_switch(cluster: Cluster, names: TopicNames) -> TransactionsSwitch:
    """Return the switch as clients read it; one that rejects nothing if it was never set."""
    return _last(cluster, names)[1]


def turn_switch(
    cluster: Cluster,
    names: TopicNames,
    log: OperatorLog,
    appender: Appender,
    *,
    is_rejecting: bool,
    reason: str,
) -> SwitchChange:
    """Set the switch, record that in the audit topic, and read the switch back.

    Repeating it is harmless: the last record holds.
    """
    before = find_switch(cluster, names)
    action = "transactions reject" if is_rejecting else "transactions accept"
    intended = log.record(
        action,
        names.settings,
        why=reason,
        before=switch_word(before),
        after="rejecting" if is_rejecting else "accepting",
    )
    switch = TransactionsSwitch(is_rejecting, intended.at_ms, log.who, reason)
    with log.recording_failure(intended):
        place = (names.settings, _PARTITION)
        offset, _ = appender.append(place, encode_switch(switch), SWITCH_KEY)
        last, after = _last(cluster, names)
    holds = last == offset
    outcome = ActionOutcome.DONE if holds else ActionOutcome.OVERRULED
    log.conclude(intended, outcome, after=switch_word(after))
    return SwitchChange(before, after, holds)


def switch_word(switch: TransactionsSwitch) -> str:
    """Return the switch in one word."""
    return "rejecting" if switch.is_rejecting else "accepting"


def _last(cluster: Cluster, names: TopicNames) -> tuple[int, TransactionsSwitch]:
    """Return the last record of the switch, with its offset; -1 where there is none."""
    cluster.require(names, names.settings, "from which clients read the switch")
    switched = cluster.settings(names).switched
    if switched is None:
        return -1, _NOT_SET
    return switched.offset, switched.switch or _NOT_SET

"""`transactions reject` and `accept`: the switch in the settings topic, set and read back."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from halfbridge.checker.errors import AdminError
from halfbridge.serde.errors import DecodeError
from halfbridge.serde.records import ActionOutcome
from halfbridge.serde.transactions_switch import (
    SWITCH_KEY,
    TransactionsSwitch,
    decode_switch,
    encode_switch,
)

if TYPE_CHECKING:
    from halfbridge.checker.admin.appending import Appender
    from halfbridge.checker.admin.cluster import Cluster
    from halfbridge.checker.admin.operator_log import OperatorLog
    from halfbridge.serde.topics import TopicNames

_PARTITION = 0  # the only one of the settings topic
_NOT_SET = TransactionsSwitch(is_rejecting=False, at_ms=0, who="", reason="")


class Turned(NamedTuple):
    """What became of a switch that was set.

    Attributes:
        before: The switch as it was found.
        after: The switch as it was read back.
        holds: Whether what was set holds; False: another operator set it since.
    """

    before: TransactionsSwitch
    after: TransactionsSwitch
    holds: bool


def find_switch(cluster: Cluster, names: TopicNames) -> TransactionsSwitch:
    """Return the switch as clients read it; where nobody set it, one that rejects nothing.

    Raises:
        AdminError: no such topic, or not to be read; the operator acts.
    """
    return _last(cluster, names)[1]


def turn_switch(
    cluster: Cluster,
    names: TopicNames,
    log: OperatorLog,
    appender: Appender,
    *,
    is_rejecting: bool,
    reason: str,
) -> Turned:
    """Set the switch and read it back; what is done stands in the audit topic.

    Repeating it is harmless: the last record holds.

    Raises:
        AdminError: nothing was set, or it is in doubt (InDoubtError); the operator repeats it.
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
    with log.telling_failure(intended):
        place = (names.settings, _PARTITION)
        offset, _ = appender.append(place, encode_switch(switch), SWITCH_KEY)
        last, after = _last(cluster, names)
    holds = last == offset
    outcome = ActionOutcome.DONE if holds else ActionOutcome.OVERRULED
    log.conclude(intended, outcome, after=switch_word(after))
    return Turned(before, after, holds)


def switch_word(switch: TransactionsSwitch) -> str:
    """Return what a switch says, in one word."""
    return "rejecting" if switch.is_rejecting else "accepting"


def _last(cluster: Cluster, names: TopicNames) -> tuple[int, TransactionsSwitch]:
    """Return the last record of the switch, with its offset; -1 where there is none."""
    if not cluster.partition_count(names.settings):
        prefix = f" --topic-prefix {names.prefix}" if names.prefix else ""
        raise AdminError(
            f"topic {names.settings} is missing, by which clients learn of it; run: halfbridge"
            f" topics create --bootstrap-servers {cluster.bootstrap_servers}{prefix}"
        )
    start, end = cluster.watermarks(names.settings, _PARTITION)
    offset, found = -1, _NOT_SET
    for record in cluster.read(names.settings, _PARTITION, start=start, end=end):
        if record.key == SWITCH_KEY:
            offset, found = record.offset, _decoded(record.value)
    return offset, found


def _decoded(value: bytes | None) -> TransactionsSwitch:
    """Return what clients make of a record's value."""
    if value is None:
        return _NOT_SET
    try:
        return decode_switch(value)
    except DecodeError:
        return _NOT_SET

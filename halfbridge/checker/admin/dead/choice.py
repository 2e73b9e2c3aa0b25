"""What an operator chose to do about dead letters. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfbridge.checker.admin.dead.letters import Body
    from halfbridge.checker.admin.dead.transactions import Remedy


class Given(NamedTuple):
    """A message from a file, in place of a dead letter's or of one that is missing."""

    real_topic: str
    real_partition: int
    body: Body


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What the operator chose.

    Attributes:
        remedy: RESUME or REDELIVER.
        messages: Only messages with these indices; empty: the whole transaction.
        given: (transaction id, message index) -> message from a file.
        accept_partial: Deliver what is there of a transaction with a gap.
        accept_duplicates: Deliver late messages that may have been delivered.
        accept_unverified: Believe letters whose half record or op was deleted.
    """

    remedy: Remedy
    messages: frozenset[int] = frozenset()
    given: Mapping[tuple[str, int], Given] = field(default_factory=dict)
    accept_partial: bool = False
    accept_duplicates: bool = False
    accept_unverified: bool = False

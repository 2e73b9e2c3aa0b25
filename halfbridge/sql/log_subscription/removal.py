"""Removes a log subscription, so that it ends or can begin again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfbridge.sql.log_subscription.errors import LogUnavailableError

if TYPE_CHECKING:
    from halfbridge.sql.log_subscription.changes import LogSource
    from halfbridge.sql.log_subscription.positions import Positions


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """What a removal deletes.

    Attributes:
        subscription: Name of the subscription.
        position: All inserts before this position became messages; None: there is no row.
        producer_group: The producer group of the relays; None: there is no row.
        staged: Number of staged rows that were not sent, and will never be sent.
        standing: Objects of the subscription on the server.
        decision_open: Whether the COMMIT of the last messages may not have been sent. Then any
            member of the producer group answers the daemon's check, by the fence.
    """

    subscription: str
    position: str | None
    producer_group: str | None
    staged: int
    standing: tuple[str, ...]
    decision_open: bool

    @property
    def is_empty(self) -> bool:
        """Whether there is no such subscription."""
        return self.position is None and not self.standing


def removal_of(positions: Positions, source: LogSource, name: str) -> Removal:
    """Return what `remove` would delete.

    Raises:
        LogUnavailableError: A relay is reading the log; stop the relay first.
    """
    standing = source.standing()
    used = [each.what for each in standing if each.is_used]
    if used:
        raise LogUnavailableError(f"{used[0]} is in use; stop the relay of {name} first")
    row = positions.read(name) if positions.is_there() else None
    return Removal(
        subscription=name,
        position=None if row is None else row.position.commit,
        producer_group=None if row is None else row.producer_group,
        staged=0 if row is None else positions.count_staged(name),
        standing=tuple(each.what for each in standing),
        decision_open=row is not None and row.decision is not None and not row.is_acknowledged,
    )


def remove(positions: Positions, source: LogSource, name: str) -> Removal:
    """Remove a subscription; return what was deleted. May be repeated after an error.

    A relay that is still running finds no row at its next claim, and begins again according to its
    own --begin-at.

    Raises:
        LogUnavailableError: A relay is reading the log; stop the relay first.
    """
    found = removal_of(positions, source, name)
    source.drop()
    if found.position is not None:
        positions.forget(name)
    return found

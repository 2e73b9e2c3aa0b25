"""Removes a log subscription that is given up, or that is to begin anew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfbridge.sql.log_subscription.errors import LogUnavailableError

if TYPE_CHECKING:
    from halfbridge.sql.log_subscription.changes import LogSource
    from halfbridge.sql.log_subscription.positions import Positions


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """What a removal takes away.

    Attributes:
        subscription: Its name.
        position: Up to which inserts were turned into messages; None: it has no row.
        producer_group: Of its relays; None: it has no row.
        staged: Rows of a snapshot that were not sent, and never will be.
        standing: What it has on the server.
        decision_open: The COMMIT of its last messages may not have been said. The fence has the
            answer: any member of the producer group gives it to the daemon's check.
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
    """Return what `remove` would take away.

    Raises:
        LogUnavailableError: a relay reads the log now; stop it first.
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
    """Remove a subscription; return what there was. May be repeated after an error.

    A relay that runs on all the same finds no row at its next claim, and begins where its own
    --begin-at says.

    Raises:
        LogUnavailableError: a relay reads the log now; stop it first.
    """
    found = removal_of(positions, source, name)
    source.drop()
    if found.position is not None:
        positions.forget(name)
    return found

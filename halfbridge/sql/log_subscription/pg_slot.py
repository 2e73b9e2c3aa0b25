"""A logical replication slot: made, dropped, and held against a position."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.sql.log_subscription.changes import Position
from halfbridge.sql.log_subscription.errors import PositionLostError, SlotLostError
from halfbridge.sql.log_subscription.pgoutput import lsn_of

if TYPE_CHECKING:
    from halfbridge.sql.log_subscription.pg_wire import ReplicationConnection


def make_slot(connection: ReplicationConnection, slot: str, snapshot: str) -> Position:
    """Create the slot, once the transactions that write now are over; return where it begins.

    Args:
        connection: A replication connection.
        slot: Name of the slot.
        snapshot: What the server does with the slot's snapshot: USE_SNAPSHOT or NOEXPORT_SNAPSHOT.
    """
    (row,) = connection.rows(
        f"CREATE_REPLICATION_SLOT {slot} LOGICAL pgoutput {snapshot}", is_patient=True
    )
    return Position((row[1] or b"").decode())


def drop_slot(connection: ReplicationConnection, slot: str) -> None:
    """Drop the slot if there is one; LogUnavailableError while the slot is read."""
    found = f"FROM pg_replication_slots WHERE slot_name = '{slot}'"
    if connection.rows(f"SELECT 1 {found}"):
        connection.rows(f"DROP_REPLICATION_SLOT {slot}")


def check_slot(connection: ReplicationConnection, slot: str, position: Position) -> None:
    """Check that the slot has the log from `position` on.

    Raises:
        SlotLostError: The slot was dropped, invalidated, or moved beyond the position.
        PositionLostError: The log ends before the position.
    """
    found = f"FROM pg_replication_slots WHERE slot_name = '{slot}'"
    rows = connection.rows(
        f"SELECT coalesce(wal_status, ''), confirmed_flush_lsn {found}"
        " AND database = current_database()"
    )
    if not rows:
        raise SlotLostError(f"replication slot {slot} does not exist in this database")
    status, confirmed = (each or b"" for each in rows[0])
    if status == b"lost" or not confirmed:
        raise SlotLostError(f"replication slot {slot} was invalidated (max_slot_wal_keep_size)")
    if lsn_of(confirmed.decode()) > lsn_of(position.commit):
        raise SlotLostError(
            f"replication slot {slot} stands at {confirmed.decode()}, beyond "
            f"{position.commit}: somebody else has moved it or made it anew"
        )
    (end,) = connection.rows("SELECT pg_current_wal_flush_lsn()")[0]
    if lsn_of((end or b"0/0").decode()) < lsn_of(position.commit):
        raise PositionLostError(
            f"the log ends at {(end or b'').decode()}, before {position.commit}: "
            "this is another server, or an older state of this one"
        )

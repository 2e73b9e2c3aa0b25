"""Findings about connectors and replication slots, which bring a database's changes. Pure."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING
from urllib.parse import quote

from halfbridge.checker.admin.doctor.codes import Finding, Severity, finding
from halfbridge.logs import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfbridge.checker.admin.doctor.facts import Changes, Connector, Slot

# PostgreSQL's default of max_wal_size: a server keeps so much log between checkpoints anyway.
KEPT_BYTES_MAX = 1 << 30
_BY_COMMAND = frozenset({"PAUSED", "STOPPED"})


def judge_changes(changes: Changes) -> Iterator[Finding]:
    """Yield what holds changes back, and what fills the database's disk meanwhile."""
    if changes.connect_silent:
        what = f"Kafka Connect at {changes.connect_url}: {one_line(changes.connect_silent)}"
        mend = f"curl -fsS {shlex.quote(changes.connect_url + '/')}"
        yield finding("connect-silent", what, mend)
    for connector in changes.connectors:
        yield _connector(connector, changes.connect_url)
    for slot in changes.slots:
        yield from _slot(slot, changes.database)


def _connector(connector: Connector, url: str) -> Finding:
    """Failed: restart it. Stopped by a command, or between workers: a warning."""
    tasks = ", ".join(connector.tasks) or "none"
    what = f"connector {one_line(connector.name)}: state {connector.state}, tasks {tasks}"
    place = f"{url}/connectors/{quote(connector.name, safe='')}"
    if "FAILED" in (connector.state, *connector.tasks):
        trace = one_line(connector.trace) or "the log of Kafka Connect has the cause"
        restart = f"{place}/restart?includeTasks=true&onlyFailed=true"
        return finding(
            "connector-stopped",
            f"{what}: {trace}. Correct the cause; then the command restarts what failed",
            f"curl -fsS -X POST {shlex.quote(restart)}",
        )
    if _BY_COMMAND.intersection((connector.state, *connector.tasks)):
        why = "an operator stopped it; the command resumes it"
        mend = f"curl -fsS -X PUT {shlex.quote(place + '/resume')}"
    else:
        why = "it starts, or no worker has it; if it stays so, see the log of Kafka Connect"
        mend = f"curl -fsS {shlex.quote(place + '/status')}"
    return Finding(Severity.WARNING, "connector-stopped", f"{what}: {why}", mend)


def _slot(slot: Slot, database: str) -> Iterator[Finding]:
    """Yield the worst that is wrong with a slot.

    Its command only shows the slot, because nobody but the operator knows whether its reader comes
    back.
    """
    columns = "slot_name, active, active_pid, wal_status, restart_lsn, confirmed_flush_lsn"
    where = f"WHERE slot_name = '{slot.name}'"  # PostgreSQL allows a-z, 0-9 and _ only
    psql = f"psql {shlex.quote(database)} -c"
    show = f'{psql} "SELECT {columns} FROM pg_replication_slots {where}"'  # noqa: S608  (shown)
    drop = f"SELECT pg_drop_replication_slot('{slot.name}')"
    gone = f"start its reader. If the reader is gone for good, {drop} frees the log"
    if slot.is_lost:
        what = (
            f"slot {slot.name}: log that it needs was removed (max_slot_wal_keep_size), so changes"
            " are lost. Drop it with the command, and begin its connector with a new snapshot"
        )
        yield finding("slot-lost", what, f'{psql} "{drop}"')
    elif slot.kept_bytes > KEPT_BYTES_MAX:
        slow = "its reader is too slow, or a transaction is open for long"
        what = (
            f"slot {slot.name}: PostgreSQL keeps {slot.kept_bytes >> 20} MiB of log for it, until"
            f" the disk is full; {slow if slot.is_active else f'nobody reads it: {gone}'}"
        )
        yield finding("slot-log", what, show)
    elif not slot.is_active:
        what = (
            f"slot {slot.name}: nobody reads it; PostgreSQL keeps {max(0, slot.kept_bytes) >> 20}"
            f" MiB of log for it, and all that follows: {gone}"
        )
        yield finding("slot-inactive", what, show)

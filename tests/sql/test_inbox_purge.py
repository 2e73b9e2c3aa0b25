"""What a purge deletes, and what it must not; what the table says of itself."""

import pytest
from sqlalchemy import Engine, insert, select

from halfbridge.kafka.errors import ConfigError
from halfbridge.sql import Inbox
from halfbridge.sql import inbox as inbox_module
from halfbridge.sql.tables import NowMs
from tests.sql.kafka_message import delivered

DAY_MS = 86_400_000
MINUTE_MS = 60_000


def mark(inbox: Inbox, engine: Engine, age_ms: int, numbers: range, group: str = "billing") -> None:
    """Insert marks of an age."""
    with engine.begin() as connection:
        now_ms = connection.execute(select(NowMs())).scalar_one()
        rows = [
            {
                "group_id": group,
                "transaction_id": f"{number:032x}",
                "message_index": number % 3,
                "created_at_ms": now_ms - age_ms,
            }
            for number in numbers
        ]
        connection.execute(insert(inbox.table), rows)


def left(inbox: Inbox, engine: Engine) -> int:
    """Return how many marks there are."""
    with engine.begin() as connection:
        return len(connection.execute(select(inbox.table.c.message_index)).all())


def test_old_marks_are_deleted(
    inbox: Inbox, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batch by batch, of this group only, and only what is old enough; a second time nothing."""
    monkeypatch.setattr(inbox_module, "PURGE_ROWS", 10)
    for number in range(7):
        mark(inbox, engine, 8 * DAY_MS + number, range(5 * number, 5 * number + 5))
    mark(inbox, engine, 7 * DAY_MS - MINUTE_MS, range(100, 104))
    mark(inbox, engine, 30 * DAY_MS, range(200, 203), group="stock")
    assert inbox.purge(older_than_ms=7 * DAY_MS, retention_ms=7 * DAY_MS) == 35
    assert inbox.purge(older_than_ms=7 * DAY_MS, retention_ms=7 * DAY_MS) == 0
    assert left(inbox, engine) == 7


def test_the_clock_is_the_databases(inbox: Inbox, engine: Engine) -> None:
    """In UTC, whatever the session's time zone is: a mark is new when it is made."""
    zones = {
        "postgresql": "SET TIME ZONE 'Pacific/Auckland'",
        "mariadb": "SET time_zone = '+13:00'",
    }
    with engine.begin() as connection:
        if zone := zones.get(engine.dialect.name):
            connection.exec_driver_sql(zone)
        assert inbox.once(connection, delivered())
    (marks,) = inbox.show()
    assert (marks.group_id, marks.count) == ("billing", 1)
    assert 0 <= marks.newest_ms == marks.oldest_ms < 10 * MINUTE_MS


def test_show_tells_of_all_groups(inbox: Inbox, engine: Engine) -> None:
    """How many marks there are, and how old they are."""
    assert inbox.show() == ()
    mark(inbox, engine, 2 * DAY_MS, range(3))
    mark(inbox, engine, DAY_MS, range(3, 4))
    mark(inbox, engine, 5 * DAY_MS, range(2), group="audit")
    shown = [
        (each.group_id, each.count, each.oldest_ms // MINUTE_MS, each.newest_ms // MINUTE_MS)
        for each in inbox.show()
    ]
    day = DAY_MS // MINUTE_MS
    assert shown == [("audit", 2, 5 * day, 5 * day), ("billing", 4, 2 * day, day)]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("older_than_ms", "retention_ms", "topics", "told"),
    [
        (DAY_MS - 1, DAY_MS, (), "older_than_ms: 86399999"),
        (DAY_MS, None, (), "retention_ms or topics"),
        (DAY_MS, DAY_MS, ("orders",), "retention_ms or topics"),
        (DAY_MS, -1, (), "rows that are kept are never purged"),
    ],
)
def test_a_mark_outlives_its_message(
    inbox: Inbox,
    engine: Engine,
    *,
    older_than_ms: int,
    retention_ms: int | None,
    topics: tuple[str, ...],
    told: str,
) -> None:
    """What can still be read again would be taken again: refused, and nothing is deleted."""
    mark(inbox, engine, 30 * DAY_MS, range(2))
    with pytest.raises(ConfigError, match=told):
        inbox.purge(older_than_ms=older_than_ms, retention_ms=retention_ms, topics=topics)
    assert left(inbox, engine) == 2

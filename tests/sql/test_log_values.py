"""Values of columns: the same from the snapshot of a table and from its log."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

import pytest

from tests.sql.log_scene import KINDS, Orders, read_until, reopen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfbridge.sql.log_subscription.changes import Value

# Of each column: name, type, a value as SQL writes it.
COLUMNS = {
    "postgresql": [
        ("n", "numeric(10,2)", "1.50"),
        ("r", "real", "1.1"),
        ("d", "double precision", "1.1"),
        ("t", "timestamptz", "'2026-01-02 03:04:05.678+02'"),
        ("b", "bool", "true"),
        ("j", "jsonb", "'{\"a\": [1]}'"),
        ("a", "int[]", "'{1,2}'"),
        ("u", "uuid", "'019373e0-0000-7000-8000-000000000001'"),
        ("i", "interval", "'1 day 02:00'"),
    ],
    "mariadb": [
        ("n", "decimal(10,2)", "1.50"),
        ("r", "float", "1.1"),
        ("d", "double", "1.1"),
        ("t", "timestamp(3)", "'2026-01-02 03:04:05.678'"),
        ("b", "bit(11)", "5"),
        ("j", "json", "'{\"a\": [1]}'"),
        ("e", "enum('x','y')", "'y'"),
        ("s", "set('q','p')", "'q,p'"),
        ("f", "binary(4)", "'a'"),
        ("i", "time(1)", "'-10:00:00.5'"),
        ("y", "year", "2026"),
        ("z", "date", "'2026-02-03'"),
        ("c", "varchar(9) CHARACTER SET latin1", "'ä'"),
        ("un", "uuid", "'019373e0-0000-7000-8000-000000000001'"),
    ],
}
MADE_TYPES = (
    "CREATE DOMAIN amount AS integer CHECK (VALUE >= 0)",
    "CREATE DOMAIN small_amount AS amount CHECK (VALUE < 100)",
    "CREATE DOMAIN price AS numeric(10,2)",
    "CREATE DOMAIN is_paid AS boolean",
    "CREATE DOMAIN body AS bytea",
    "CREATE DOMAIN at AS timestamptz",
    "CREATE DOMAIN amounts AS integer[]",
    "CREATE TYPE mood AS ENUM ('sad', 'glad')",
    "CREATE DOMAIN gladness AS mood",
    "CREATE TYPE place AS (x integer, body bytea, at timestamptz)",
    "CREATE DOMAIN spot AS place",
    "CREATE TYPE times AS RANGE (subtype = timestamptz)",
    # Named as a built-in type, in a schema of the user's.
    "CREATE DOMAIN int8 AS text",
)
PLACE = "ROW(1, '\\x00ff', '2026-01-02 03:04:05+02')"
MADE_COLUMNS = [
    ("amount", "amount", "7", 7),
    ("small", "small_amount", "8", 8),
    ("price", "price", "1.50", Decimal("1.50")),
    ("paid", "is_paid", "true", True),
    ("body", "body", "'\\x00ff'", b"\0\xff"),
    ("at", "at", "'2026-01-02 03:04:05+02'", "2026-01-02 01:04:05+00"),
    ("amounts", "amounts", "'{1,2}'", "{1,2}"),
    ("of_amount", "amount[]", "'{1,2}'", "{1,2}"),
    ("mood", "mood", "'glad'", "glad"),
    ("gladness", "gladness", "'glad'", "glad"),
    ("moods", "mood[]", "'{glad,sad}'", "{glad,sad}"),
    ("place", "place", PLACE, '(1,"\\\\x00ff","2026-01-02 01:04:05+00")'),
    ("spot", "spot", PLACE, '(1,"\\\\x00ff","2026-01-02 01:04:05+00")'),
    (
        *("times", "times", "'[2026-01-02 03:04:05+02,]'"),
        '["2026-01-02 01:04:05+00",)',
    ),
    ("own", "public.int8", "'12'", "12"),
]


def both_ways(orders: Orders, columns: list[tuple[str, str, str]]) -> dict[str, Value]:
    """Return a row of these columns as snapshot and log tell it, having checked that they agree.

    A row of nulls is told by both too.
    """
    types = ", ".join(f"{name} {kind}" for name, kind, _ in columns)
    generated = "g int GENERATED ALWAYS AS (id + 1) STORED"
    orders.execute(
        "DROP TABLE orders", f"CREATE TABLE orders (id int primary key, {types}, {generated})"
    )
    names, values = (", ".join(each[place] for each in columns) for place in (0, 2))
    insert = f"INSERT INTO orders (id, {names}) VALUES (%d, {values})"
    nulls = "INSERT INTO orders (id) VALUES (%d)"
    source = orders.source()
    orders.execute(insert % 1, nulls % 1_000)
    with source.begin_snapshot() as snapshot:
        orders.execute(insert % 2, nulls % 1_001)
        rows = list(snapshot.rows())
    reopen(source, snapshot.position)
    logged = [dict(each.values) for each in read_until(source, 2)]
    assert [_typed(each) for each in logged] == [_typed(each) for each in rows]
    assert "g" not in rows[0]
    return dict(rows[0])


def _typed(row: Mapping[str, Value]) -> list[tuple[str, str, Value]]:
    """Return the columns but for the number, with their types: 1 is neither true nor 1.0."""
    return [(name, type(each).__name__, each) for name, each in row.items() if name != "id"]


@pytest.mark.parametrize("database", KINDS, indirect=True)
def test_a_snapshot_tells_values_as_the_log_does(orders: Orders) -> None:
    """Whichever way a row comes, its message is the same."""
    row = both_ways(orders, COLUMNS[orders.database.name])
    assert row["j"] == '{"a": [1]}'


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_type_that_a_user_made_is_what_it_is_based_on(orders: Orders) -> None:
    """A domain is its base type, in the log too, which tells it under the domain's own number."""
    orders.execute(*MADE_TYPES)
    row = both_ways(orders, [each[:3] for each in MADE_COLUMNS])
    expected = {name: value for name, _, _, value in MADE_COLUMNS}
    assert _typed(row) == _typed(expected)


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_column_that_becomes_a_domain_goes_on(orders: Orders) -> None:
    """The log tells of a type again when the table has changed while it is read."""
    orders.execute("CREATE DOMAIN amount AS integer", "ALTER TABLE orders ADD n integer")
    source = orders.source()
    source.open(source.begin_now())
    insert = "INSERT INTO orders (id, n) VALUES (%d, 5)"
    orders.execute(insert % 1, "ALTER TABLE orders ALTER n TYPE amount", insert % 2)
    found = read_until(source, 2)
    assert [each.values["n"] for each in found] == [5, 5]

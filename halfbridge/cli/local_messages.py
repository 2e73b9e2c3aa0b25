"""`halfbridge local-messages`: create, list, show, retry and purge a local message table."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from halfbridge.cli.options import database_options, json_option, limit_option, opened, together
from halfbridge.logs import one_line
from halfbridge.serde.units import HOUR_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from halfbridge.sql.bounds import Bounds
    from halfbridge.sql.local_messages.writer import LocalMessages

_STATES = (
    *("UNKNOWN", "PREPARED", "LOCAL_COMMIT", "LOCAL_SUCCESS"),
    *("LOCAL_ROLLBACK", "GLOBAL_COMMIT", "MESSAGE_ERROR"),
)
_SHOWN_CHARS_MAX = 200  # two lines of a terminal
F = TypeVar("F", bound="Callable[..., object]")


def table_options(*, needs_url: bool = True) -> Callable[[F], F]:
    """Return a decorator that adds --url, --name, --schema and --relay-table-name."""
    relays = click.option(
        "--relay-table-name",
        default="halfbridge_relay",
        show_default=True,
        help="Prefix of the names of the relays' own tables.",
    )
    return together(database_options("halfbridge_local_message", needs_url=needs_url), relays)


_ids_argument = click.argument("row_ids", metavar="[ID]...", nargs=-1, type=click.IntRange(min=1))


@contextmanager
def opened_table(
    values: dict[str, Any], *, bounds: Bounds | None = None
) -> Iterator[LocalMessages]:
    """Yield the table that `table_options` name; remove these options from `values`."""
    schema, name = values.pop("schema"), values.pop("name")
    relay_name = values.pop("relay_table_name")
    with opened(values.pop("url"), bounds=bounds) as engine:
        from halfbridge.sql.local_messages.writer import LocalMessages

        yield LocalMessages(engine, name=name, relay_name=relay_name, schema=schema)


@click.group(name="local-messages")
def local_messages() -> None:
    """Create, list, show, retry and purge a local message table."""


@local_messages.command()
@table_options()
def create(**values: object) -> int:
    """Create the tables if they do not exist."""
    with opened_table(values) as messages:
        messages.create()
        click.echo(f"table {messages.tables.messages.fullname} exists")
    return 0


@local_messages.command(name="list")
@table_options()
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(_STATES),
    help="Only rows in this state; may be repeated. [default: all states of rows not done]",
)
@click.option("--after-id", type=click.IntRange(min=0), default=0, help="Only greater ids.")
@limit_option(10_000, 100, "Most rows.")
@json_option
def list_command(*, states: tuple[str, ...], as_json: bool, **values: Any) -> int:
    """List rows by id, and count the rows in each state."""
    limits = {"after_id": values.pop("after_id"), "limit": values.pop("limit")}
    with opened_table(values) as messages:
        from halfbridge.sql.local_messages import admin
        from halfbridge.sql.local_messages.rows import RowState

        done = {RowState.GLOBAL_COMMIT, RowState.LOCAL_ROLLBACK}
        wanted = {RowState(state) for state in states} or set(RowState) - done
        counts = admin.count_rows(messages)
        rows = admin.list_rows(messages, states=wanted, **limits)
    if as_json:
        by_state = {state.value: count for state, count in counts.items()}
        click.echo(json.dumps({"counts": by_state, "rows": rows}))
        return 0
    for state, count in counts.items():
        click.echo(f"{state.value:<15} {count}")
    for row in rows:
        cause = f": {one_line(row['cause'])}" if row["cause"] else ""
        click.echo(
            f"{row['id']} {row['state']} {one_line(row['topic'])} retries {row['retries']}{cause}"
        )
    return 0


@local_messages.command()
@table_options()
@click.argument("row_id", metavar="ID", type=click.IntRange(min=1))
@json_option
def show(*, row_id: int, as_json: bool, **values: object) -> int:
    """Show one row, with its message."""
    with opened_table(values) as messages:
        from halfbridge.sql.local_messages import admin

        found = admin.show_row(messages, row_id)
        if found is None:
            raise click.ClickException(f"no row {row_id} in {messages.tables.messages.fullname}")
    bodies = {"key": found.key, "value": found.value}
    if as_json:
        hexed = {name: None if body is None else body.hex() for name, body in bodies.items()}
        click.echo(json.dumps({**found.columns, **hexed, "headers": found.headers}))
        return 0
    for name, value in {**found.columns, **bodies, "headers": found.headers}.items():
        shown = "" if value is None else one_line(str(value))[:_SHOWN_CHARS_MAX]
        click.echo(f"{name:<22} {shown}".rstrip())
    return 0


@local_messages.command()
@table_options()
@_ids_argument
@click.option("--all", "is_all", is_flag=True, help="All rows that were given up.")
def retry(*, row_ids: tuple[int, ...], is_all: bool, **values: object) -> int:
    """Send rows again that were given up (MESSAGE_ERROR). Remove the cause first."""
    _demand_choice(row_ids, is_all=is_all)
    with opened_table(values) as messages:
        from halfbridge.sql.local_messages import admin

        found = admin.retry(messages, None if is_all else row_ids)
    click.echo(f"{found} rows are sent again")
    return 0


@local_messages.command()
@table_options()
@click.option(
    "--older-than-ms",
    type=click.IntRange(min=1),
    default=7 * 24 * HOUR_MS,
    show_default=True,
    help="Least time since the last change of a deleted row.",
)
@click.option(
    "--transaction-age-ms-max",
    type=click.IntRange(min=1),
    default=72 * HOUR_MS,
    show_default=True,
    help="The daemon's setting. Younger rows are kept, because a dead letter may still come.",
)
@click.option(
    "--error",
    "errors",
    type=click.IntRange(min=1),
    multiple=True,
    metavar="ID",
    help="Delete this MESSAGE_ERROR row instead; it is never sent. May be repeated.",
)
def purge(*, errors: tuple[int, ...], **values: Any) -> int:
    """Delete rows that were relayed or rolled back long ago; may be repeated."""
    ages = {name: values.pop(name) for name in ("older_than_ms", "transaction_age_ms_max")}
    if ages["older_than_ms"] < ages["transaction_age_ms_max"]:
        raise click.UsageError(
            "--older-than-ms must be at least --transaction-age-ms-max: a dead letter may come as"
            " late as that",
            click.get_current_context(),
        )
    with opened_table(values) as messages:
        from halfbridge.sql.local_messages import admin

        gone = admin.drop_errors(messages, errors) if errors else admin.purge(messages, **ages)
    click.echo(f"{gone} rows deleted")
    return 0


def _demand_choice(row_ids: tuple[int, ...], *, is_all: bool) -> None:
    if bool(row_ids) == is_all:
        raise click.UsageError("give ids, or --all", click.get_current_context())

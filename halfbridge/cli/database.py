"""Options and error handling of commands that use a database."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Engine

    from halfbridge.sql.bounds import Bounds

F = TypeVar("F", bound="Callable[..., Any]")

URL_VARIABLE = "HALFBRIDGE_DATABASE_URL"


def database_options(default_name: str, *, needs_url: bool = True) -> Callable[[F], F]:
    """Return a decorator that adds `--url`, `--name` and `--schema` of a table."""
    options = (
        click.option(
            "--url",
            required=needs_url,
            envvar=URL_VARIABLE,
            metavar="URL",
            help="SQLAlchemy URL of the database. Give a URL with a password in the environment"
            f" variable, which other users cannot see. [{URL_VARIABLE}]",
        ),
        click.option("--name", default=default_name, show_default=True, help="Name of the table."),
        click.option("--schema", default=None, help="Schema of the table. [default: the user's]"),
    )

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


@contextmanager
def opened(url: str, *, bounds: Bounds | None = None, option: str = "--url") -> Iterator[Engine]:
    """Yield an engine; an error of the database becomes one line.

    Args:
        url: SQLAlchemy URL of the database.
        bounds: For a long-running command; see engine_of.
        option: The option that gave the URL, for errors.

    Raises:
        ClickException: The extra `sql` is not installed, or the database refuses; status 1.
        ConfigError: The URL is wrong, or its driver is not installed.
    """
    try:  # imported here: an extra, which other commands and --help do not need
        from sqlalchemy.exc import DBAPIError, SQLAlchemyError

        from halfbridge.sql.engines import engine_of
    except ModuleNotFoundError as error:
        from halfbridge.sql import HINT

        raise click.ClickException(HINT) from error
    engine = engine_of(url, bounds=bounds, option=option)
    try:
        yield engine
    except DBAPIError as error:  # without the statement, and SQLAlchemy's link
        raise click.ClickException(f"{engine.url!r}: {error.orig}") from error
    except SQLAlchemyError as error:
        raise click.ClickException(f"{engine.url!r}: {error}") from error
    finally:
        engine.dispose()

"""What commands on a database share: the option --url, and a clear word where it cannot work."""

from __future__ import annotations

import importlib.util
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

URL_VARIABLE = "HALFBRIDGE_DATABASE_URL"
url_option = click.option(
    "--url",
    required=True,
    envvar=URL_VARIABLE,
    metavar="URL",
    help=f"SQLAlchemy's URL of the database. [{URL_VARIABLE}]",
)


@contextmanager
def opened(url: str) -> Iterator[Engine]:
    """Yield an engine; errors of the database inside become one line.

    Raises:
        click.ClickException: SQLAlchemy is missing, or the database refused; status 1.
        ConfigError: the URL is wrong.
    """
    if importlib.util.find_spec("sqlalchemy") is None:
        raise click.ClickException(
            "SQLAlchemy is not installed: pip install 'halfbridge[sql]' brings it, with drivers"
        )
    # Late: they bring SQLAlchemy, which --help does not need.
    from sqlalchemy.exc import DBAPIError, SQLAlchemyError  # noqa: PLC0415

    from halfbridge.sql.engines import engine_of  # noqa: PLC0415

    engine = engine_of(url)
    try:
        yield engine
    except DBAPIError as error:  # without the statement, and SQLAlchemy's link
        raise click.ClickException(f"the database: {error.orig}") from error
    except SQLAlchemyError as error:
        raise click.ClickException(f"the database: {error}") from error
    finally:
        engine.dispose()

"""Options that commands share, and how their values are read.

They come from a settings dataclass (`settings_options`), from commands that change something
(`acting`), from times such as `90s` or `7d`, and from commands that use a database.
"""

from __future__ import annotations

import getpass
import re
import socket
import sys
from contextlib import contextmanager
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from halfbridge import environment
from halfbridge.bridge.config import read_toml
from halfbridge.extras import needs
from halfbridge.logs import LOG_FORMATS, LOG_LEVELS
from halfbridge.serde.settings import Setting, describe, load
from halfbridge.serde.units import MS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from sqlalchemy import Engine

    from halfbridge.checker.admin.cluster import Cluster
    from halfbridge.checker.config import CheckerConfig
    from halfbridge.sql.bounds import Bounds

T = TypeVar("T")
F = TypeVar("F", bound="Callable[..., object]")


def together(*options: Callable[[Any], object]) -> Callable[[F], F]:
    """Return one decorator for several options, in the order in which --help shows them."""

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


CONFIG_VARIABLE = "HALFBRIDGE_CONFIG"
CONNECTION = ("bootstrap_servers", "topic_prefix", "kafka")
# Settings of commands that judge half and op records, or write some.
JUDGING = (*CONNECTION, "key_file")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
log_format_option = click.option(
    "--log-format",
    type=click.Choice(LOG_FORMATS),
    default="text",
    envvar="HALFBRIDGE_LOG_FORMAT",
    show_default=True,
    help="json: one event a line. [HALFBRIDGE_LOG_FORMAT]",
)
# Options of a command that logs, for `log_to_stderr`.
logging_options = together(
    click.option(
        "--log-level",
        type=click.Choice(LOG_LEVELS),
        default="info",
        envvar="HALFBRIDGE_LOG_LEVEL",
        show_default=True,
        help="Least level of log lines; SIGUSR1 switches to debug, and back."
        " [HALFBRIDGE_LOG_LEVEL]",
    ),
    log_format_option,
)
# Options of a command that serves metrics and health, for `run_until_signal`.
metrics_options = together(
    click.option("--metrics-host", default="127.0.0.1", show_default=True, help="For metrics."),
    click.option(
        "--metrics-port",
        type=click.IntRange(0, 65535),
        help="For metrics and health; 0: a free one.",
    ),
)
_METAVARS: dict[Any, str] = {int: "N", float: "N", str: "TEXT", Path: "PATH"}


def require(what: str, *packages: str) -> None:
    """Return if the packages of extras that `what` needs are installed."""
    for package in packages:
        if find_spec(package) is None:
            raise click.ClickException(needs(what, package))


def settings_options(
    cls: type, *, only: Collection[str] | None = None, has_file: bool = True
) -> Callable[[F], F]:
    """Return a decorator that adds `--config` and one option for each setting of `cls`.

    Values stay text: `load` checks flags, variables and file in the same way, and its errors say
    where a bad value came from. Without `has_file` there is no `--config`: one file contains the
    settings of one class.
    """
    options = [_option(each) for each in describe(cls) if only is None or each.name in only]
    config = click.option(
        "--config",
        "config_file",
        metavar="PATH",
        type=click.Path(path_type=Path),
        envvar=CONFIG_VARIABLE,
        help=f"TOML file of settings. [{CONFIG_VARIABLE}]",
    )

    return together(*([config, *options] if has_file else options))


def load_settings(cls: type[T], values: Mapping[str, Any]) -> T:
    """Return `cls` from an option decorator's values, the environment and the file."""
    path = values.get("config_file")
    names = {each.name for each in describe(cls)}
    flags = {name: value for name, value in values.items() if name in names}
    return load(
        cls, flags=flags, environ=environment.variables(), file=read_toml(path) if path else {}
    )


def connected(
    values: Mapping[str, object], *, judges: bool = False
) -> tuple[Cluster, CheckerConfig]:
    """Return the cluster and the settings that the options name.

    The cluster `judges` records by the operator's key file, or believes all of them.
    """
    # Imported here: --help does not need the Kafka client.
    from halfbridge.checker.admin.cluster import Cluster, judging_cluster
    from halfbridge.checker.config import CheckerConfig

    config = load_settings(CheckerConfig, values)
    if judges:
        return judging_cluster(config), config
    return Cluster(config.bootstrap_servers, kafka=config.kafka), config


def _option(each: Setting) -> Callable[[F], F]:
    text = f"{each.doc} [{each.environment}]"
    if each.kind is bool:
        return click.option(f"{each.flag}/--no-{each.flag[2:]}", default=None, help=text)
    if each.kind not in _METAVARS:
        metavar = "WORD" if each.kind is tuple else "NAME=VALUE"
        return click.option(
            each.flag, multiple=True, metavar=metavar, help=f"{text} May be repeated."
        )
    if each.default not in (None, "") and not each.secret:
        text += f" [default: {each.default}]"
    return click.option(each.flag, default=None, metavar=_METAVARS[each.kind], help=text)


_NOBODY = "unknown"


def _checked_reason(_context: click.Context, _option: click.Parameter, reason: str) -> str:
    from halfbridge.checker.admin.operator_log import reason_problem

    problem = reason_problem(reason)
    if problem:
        raise click.BadParameter(problem)
    return reason


actor_option = click.option(
    "--actor", default=None, metavar="TEXT", help="Who acts. [default: user@host of the system]"
)
# Options of a command that changes something.
acting = together(
    click.option(
        "--reason",
        required=True,
        callback=_checked_reason,
        metavar="TEXT",
        help="Why; kept in the audit topic.",
    ),
    actor_option,
    click.option("--yes", is_flag=True, help="Do not ask."),
)


def who(values: dict[str, Any]) -> str:
    """Return `--actor`, else user@host of the operating system."""
    if values["actor"]:
        return str(values["actor"])
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = _NOBODY
    return f"{user}@{socket.gethostname()}"


def confirm(question: str, *, yes: bool) -> bool:
    """Ask on standard error; return whether the operator agrees. Without a terminal: UsageError."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise click.UsageError(
            "cannot ask: standard input is no terminal; give --yes", click.get_current_context()
        )
    return click.confirm(question, err=True)


_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SPAN = re.compile(r"([0-9]{1,9})(ms|s|m|h|d)")


def span_ms(text: str) -> int:
    """Return a span as milliseconds; a type of options."""
    found = _SPAN.fullmatch(text)
    if found is None:
        raise click.BadParameter(f"{text!r} is no span; allowed: 90s, 15m, 2h, 7d")
    return int(found[1]) * _MS[found[2]]


def moment_ms(text: str) -> int:
    """Return a span before now, or an ISO 8601 time, as ms since 1970; a type of options."""
    if _SPAN.fullmatch(text):
        return int(datetime.now(timezone.utc).timestamp() * MS_PER_S) - span_ms(text)
    try:  # Python 3.10 knows no Z
        time = datetime.fromisoformat(re.sub("Z$", "+00:00", text))
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is no time; allowed: 2h, 7d, 2026-11-23T21:30:00Z (UTC without a zone)"
        ) from None
    zoned = time if time.tzinfo else time.replace(tzinfo=timezone.utc)
    return int(zoned.timestamp() * MS_PER_S)


def time_option(name: str, text: str, *, default: str | None = None) -> Callable[[F], F]:
    """Return an option for a time, whose value is `<name>_ms`; `text` is its help."""
    return click.option(
        f"--{name}",
        f"{name}_ms",
        type=moment_ms,
        default=default,
        show_default=default is not None,
        metavar="TIME",
        help=text,
    )


def port_option(name: str, default: int, text: str, *, least: int = 0) -> Callable[[F], F]:
    """Return an option for a port of TCP; `text` is its help."""
    return click.option(
        name, type=click.IntRange(least, 65535), default=default, show_default=True, help=text
    )


def limit_option(most: int, default: int, text: str) -> Callable[[F], F]:
    """Return `--limit`; `text` is its help."""
    return click.option(
        "--limit", type=click.IntRange(1, most), default=default, show_default=True, help=text
    )


URL_VARIABLE = "HALFBRIDGE_DATABASE_URL"


def database_options(default_name: str, *, needs_url: bool = True) -> Callable[[F], F]:
    """Return a decorator that adds `--url`, `--name` and `--schema` of a table."""
    return together(
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


@contextmanager
def opened(url: str, *, bounds: Bounds | None = None, option: str = "--url") -> Iterator[Engine]:
    """Yield an engine; an error of the database becomes one line, which names `option`."""
    require(option, "sqlalchemy", "psycopg")
    # Imported here: an extra, which other commands and --help do not need.
    from sqlalchemy.exc import DBAPIError, SQLAlchemyError

    from halfbridge.sql.engines import engine_of

    engine = engine_of(url, bounds=bounds, option=option)
    try:
        yield engine
    except DBAPIError as error:  # without the statement, and SQLAlchemy's link
        raise click.ClickException(f"{engine.url!r}: {error.orig}") from error
    except SQLAlchemyError as error:
        raise click.ClickException(f"{engine.url!r}: {error}") from error
    finally:
        engine.dispose()

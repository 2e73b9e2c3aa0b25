"""Makes command-line options from a settings dataclass, and loads the settings from them."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from halfbridge.bridge.config import read_toml
from halfbridge.logs import LOG_FORMATS, LOG_LEVELS
from halfbridge.serde.settings import Setting, describe, load

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

T = TypeVar("T")
F = TypeVar("F", bound="Callable[..., Any]")

CONFIG_VARIABLE = "HALFBRIDGE_CONFIG"
CONNECTION = ("bootstrap_servers", "topic_prefix", "kafka")
# Of commands that judge half and op records, or write some.
JUDGING = (*CONNECTION, "key_file")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
_log_level = click.option(
    "--log-level",
    type=click.Choice(LOG_LEVELS),
    default="info",
    envvar="HALFBRIDGE_LOG_LEVEL",
    show_default=True,
    help="Least level of log lines; SIGUSR1 switches to debug, and back. [HALFBRIDGE_LOG_LEVEL]",
)
_log_format = click.option(
    "--log-format",
    type=click.Choice(LOG_FORMATS),
    default="text",
    envvar="HALFBRIDGE_LOG_FORMAT",
    show_default=True,
    help="json: one event a line. [HALFBRIDGE_LOG_FORMAT]",
)
_METAVARS: dict[Any, str] = {int: "N", float: "N", str: "TEXT", Path: "PATH"}


def require_extra(extra: str, what: str, *packages: str) -> None:
    """Return if the packages of an extra are installed.

    Raises:
        ClickException: `what` needs some that are not; the user installs them.
    """
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise click.ClickException(
            f"{what} needs {', '.join(missing)}: pip install 'halfbridge[{extra}]'"
        )


def settings_options(
    cls: type, *, only: Collection[str] | None = None, has_file: bool = True
) -> Callable[[F], F]:
    """Return a decorator that adds `--config` and one option for each setting of `cls`.

    Values stay text: `load` checks flags, variables and file in the same way, and its errors say
    where a bad value came from.

    Args:
        cls: A dataclass whose fields are made by `halfbridge.serde.settings.setting`.
        only: Names of the settings to add; all by default.
        has_file: Whether to add `--config`. One file contains the settings of one class.
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

    def add(command: F) -> F:
        for option in reversed([config, *options] if has_file else options):
            command = option(command)
        return command

    return add


def logging_options(command: F) -> F:
    """Add the options of a command that logs, for `log_to_stderr`."""
    return _log_level(_log_format(command))


def load_settings(cls: type[T], values: Mapping[str, Any]) -> T:
    """Return `cls` from an option decorator's values, the environment and the file.

    Raises:
        ConfigError: A value is wrong; the text names the setting, its origin and what is allowed.
    """
    path = values.get("config_file")
    names = {each.name for each in describe(cls)}
    flags = {name: value for name, value in values.items() if name in names}
    return load(cls, flags=flags, environ=os.environ, file=read_toml(path) if path else {})


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

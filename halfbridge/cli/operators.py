"""What the commands that change something share: who acts, why, and what is asked before."""

from __future__ import annotations

import getpass
import socket
import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable

_NOBODY = "unknown"


def _checked_reason(_context: click.Context, _option: click.Parameter, reason: str) -> str:
    from halfbridge.checker.admin.operator_log import reason_problem

    problem = reason_problem(reason)
    if problem:
        raise click.BadParameter(problem)
    return reason


reason_option = click.option(
    "--reason",
    required=True,
    callback=_checked_reason,
    metavar="TEXT",
    help="Why; stands in the audit topic.",
)
actor_option = click.option(
    "--actor", default=None, metavar="TEXT", help="Who acts. [default: user@host of the system]"
)
yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


def acting(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--reason`, `--actor` and `--yes`."""
    return reason_option(actor_option(yes_option(function)))


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
    """Ask on standard error; return whether the operator agrees.

    Raises:
        UsageError: nobody can be asked, since standard input is no terminal.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise click.UsageError(
            "nobody can be asked: standard input is no terminal; give --yes",
            click.get_current_context(),
        )
    return click.confirm(question, err=True)

"""The `halfbridge` command. Each command's module is imported when the command is used.

Exit status: 0 success; 1 failure; 2 wrong usage or configuration. The daemon has more exit statuses
(halfbridge.checker.errors). An error is one line on standard error.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
import traceback
from contextlib import suppress
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NoReturn

import click

from halfbridge import __version__
from halfbridge.cli.guard import guard

if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_ERROR = 1  # as in click, and in commands of POSIX
EXIT_USAGE = 2  # as in click
# A full disk, or a reader that ended first, such as `head`.
_NO_OUTPUT = (errno.ENOSPC, errno.EPIPE)
EXIT_INTERRUPTED = 130  # what a shell shows for SIGINT
DEBUG_FLAG = "--debug"
_ASKED_FOR_HELP: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())

# Command -> one line for --help. The command is the function of the same name in the module
# halfbridge.cli.<command>, with _ for -.
COMMANDS = {
    "audit-log": "Show what operators did.",
    "bench": "Measure throughput and latency, end to end.",
    "broker": "Run a real Kafka broker on this machine.",
    "checker": "Run the daemon, or reset one of its partitions.",
    "dead": "List dead letters, and bring them back.",
    "demo": "Show the whole protocol: 2,000 orders, with crashes.",
    "dev": "Run Kafka, topics, daemon and page in one terminal.",
    "doctor": "Find faults, and the commands that remove them.",
    "fence": "Create, show and purge a fence's table; answer checks from it.",
    "groups": "See producer groups, and who answers checks.",
    "inbox": "Create, show and purge the table of an inbox.",
    "keys": "Make and check keys that sign records.",
    "local-messages": "Create, list, show, retry and purge a local message table.",
    "monitoring": "Print Prometheus's alert rules and Grafana's dashboard.",
    "relay": "Send a local message table's rows, or Debezium's changes.",
    "spark": "Read, audit and copy topics with Spark.",
    "topics": "Create or check the internal topics.",
    "transactions": "Stop new transactions of all clients, or accept them again.",
    "tx": "See transactions, and decide undecided ones.",
    "web": "Serve the API and the web page for operators.",
}


class LazyGroup(click.Group):
    """A group whose commands are imported by name, and whose errors are one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names, sorted."""
        del ctx
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command called `cmd_name`, imported now."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        module = importlib.import_module(f"halfbridge.cli.{name}")
        command: click.Command = getattr(module, name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; the error for an unknown command names the most similar command."""
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            near = get_close_matches(args[0], COMMANDS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(COMMANDS))}"
            raise click.UsageError(f"no such command {args[0]!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,  # noqa: FBT001, FBT002 (click's signature)
        **extra: object,
    ) -> Any:
        """Run the command; an error becomes one line and an exit status, unless with --debug."""
        words = list(sys.argv[1:] if args is None else args)
        debug = DEBUG_FLAG in words  # at any place, also after the command
        words = [word for word in words if word != DEBUG_FLAG]
        name = prog_name or "halfbridge"
        if not standalone_mode:
            return super().main(words, name, complete_var, standalone_mode=False, **extra)
        try:
            status = super().main(words, name, complete_var, standalone_mode=False, **extra)
        except _ASKED_FOR_HELP as error:  # a group without a command, from click 8.2 on
            click.echo(error.format_message())
            status = 0
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 (the last resort)
            _fail(error, debug=debug)
        sys.exit(status if isinstance(status, int) else 0)


def _fail(error: BaseException, *, debug: bool) -> NoReturn:
    if debug:
        traceback.print_exception(error)
    text, status = _explain(error)
    with suppress(OSError):  # standard error is closed; the exit status remains
        click.echo(f"halfbridge: {text}", err=True)
    sys.exit(status)


def _explain(error: BaseException) -> tuple[str, int]:
    # Imported here: a command that succeeds does not need them.
    from halfbridge.checker.errors import CheckerError
    from halfbridge.kafka.errors import BridgeError, ConfigError

    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return "interrupted", EXIT_INTERRUPTED
    if isinstance(error, click.UsageError):
        path = error.ctx.command_path if error.ctx else "halfbridge"
        return f"{_one_line(error.format_message())} (see `{path} --help`)", EXIT_USAGE
    if isinstance(error, click.ClickException):
        return _one_line(error.format_message()), error.exit_code
    if isinstance(error, CheckerError):
        # A service manager uses the exit status to decide whether to restart the daemon.
        return _one_line(str(error)), error.exit_code
    if isinstance(error, BridgeError):
        return _one_line(str(error)), EXIT_USAGE if isinstance(error, ConfigError) else EXIT_ERROR
    what = f"unexpected error: {_one_line(f'{type(error).__name__}: {error}')}"
    text = f"{what} (run again with {DEBUG_FLAG} for the traceback)"
    if isinstance(error, OSError) and error.errno in _NO_OUTPUT and error.filename is None:
        text = f"cannot write to standard output: {error.strerror}"
    return text, EXIT_ERROR


def _one_line(text: str) -> str:
    return " ".join(text.split())


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="halfbridge")
@click.option(DEBUG_FLAG, is_flag=True, help="Show tracebacks; allowed at any place.")
def cli(*, debug: bool) -> None:
    """Run RocketMQ's transactional messages on the Kafka that you already have."""
    del debug  # taken by LazyGroup.main


def main() -> NoReturn:
    """Run the command line of this process, and end the process with its exit status."""
    # Imported here: code that imports single commands does not need it.
    from halfbridge.signals import end_process

    _open_closed_streams()
    guard(sys.argv[1:])
    try:
        cli.main(prog_name="halfbridge")
    except SystemExit as end:
        end_process(_status_of(end))
    raise AssertionError("a command line ends by SystemExit")


def _open_closed_streams() -> None:
    """Open the null device in place of each standard stream that the caller has closed.

    Otherwise the next file or socket gets the stream's number, and receives the output.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        descriptor = os.open(os.devnull, os.O_RDWR)
        if descriptor != number:
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.set_inheritable(number, True)  # noqa: FBT003 (positional only)
        stream = os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False)
        setattr(sys, name, stream)


def _status_of(end: SystemExit) -> int:
    """Return the exit status of a SystemExit; print its text, as the interpreter does."""
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code
    click.echo(end.code, err=True)  # raised by an imported module of the user, for example
    return EXIT_ERROR

"""`halfbridge keys`: create entries of a key file, and check the file."""

from __future__ import annotations

import os
import time
from base64 import b64encode
from pathlib import Path

import click

from halfbridge.checker.admin.doctor.logs import key_problems
from halfbridge.checker.admin.words import shown_time
from halfbridge.cli.options import span_ms
from halfbridge.serde.errors import KeyFileError
from halfbridge.serde.signing_keys import (
    FRESH_MS_MIN,
    MARGIN_MS,
    NEVER_MS,
    SECRET_BYTES_MIN,
    Algorithm,
    Role,
    load_key_file,
)

_ROLES = [each.value for each in Role]
_ALGORITHMS = [each.value for each in Algorithm]
_groups_option = click.option(
    "--group",
    "groups",
    multiple=True,
    default=("*",),
    show_default=True,
    help="Producer group, or * for all. May be repeated.",
)


@click.group()
def keys() -> None:
    """Make tables of a key file, and check one."""


@keys.command()
@click.argument("key_id", metavar="ID")
@click.option("--role", type=click.Choice(_ROLES), required=True, help="Who signs with it.")
@_groups_option
@click.option(
    "--algorithm",
    type=click.Choice(_ALGORITHMS),
    default=Algorithm.ED25519.value,
    show_default=True,
    help="ed25519 needs the extra `signing`.",
)
@click.option("--in", "wait_ms", type=span_ms, help="Valid from so long after now on.")
def new(
    key_id: str, role: str, groups: tuple[str, ...], algorithm: str, wait_ms: int | None
) -> int:
    """Print the tables of a new key: for the file of who signs, and for the file of all others.

    An HMAC key is the same for both. Nothing is written to a file.
    """
    head = [f'id = "{key_id}"', f'role = "{role}"', f"groups = {_list(groups)}"]
    tail = [] if wait_ms is None else [_moment("valid_from_ms", _now_ms() + wait_ms)]
    head.append(f'algorithm = "{algorithm}"')
    if algorithm == Algorithm.HMAC_SHA256.value:
        whole = [f'secret = "{_base64(os.urandom(SECRET_BYTES_MIN))}"']
        _echo_table("keys", [*head, *whole, *tail], "who signs, and who verifies")
        return 0
    from halfbridge.serde import ed25519

    try:
        ed25519.check_installed()
    except KeyFileError as error:
        raise click.ClickException(str(error)) from error
    private = os.urandom(ed25519.KEY_BYTES)
    public = f'public = "{_base64(ed25519.public_of(private))}"'
    _echo_table(
        "keys", [*head, public, f'private = "{_base64(private)}"', *tail], "who signs: keep it"
    )
    _echo_table("keys", [*head, public, *tail], "who verifies: daemon, operators, auditors")
    return 0


@keys.command()
@_groups_option
@click.option(
    "--in", "wait_ms", type=span_ms, default="1h", show_default=True, help="From so long after now."
)
@click.option("--fresh", "fresh_ms", type=span_ms, help="How long a signature is good.")
def demand(groups: tuple[str, ...], wait_ms: int, fresh_ms: int | None) -> int:
    """Print the table that demands signatures from some time on.

    All readers need the file before that time: give it to every worker, and restart them.
    """
    if wait_ms < MARGIN_MS:
        raise click.UsageError(
            f"--in: at least {MARGIN_MS // 60_000}m, so that every worker has the file before; a"
            " demand in the past doubts what was delivered already",
            click.get_current_context(),
        )
    if fresh_ms is not None and fresh_ms < FRESH_MS_MIN:
        raise click.UsageError(
            f"--fresh: at least {FRESH_MS_MIN // 1_000}s: clocks differ, and a send takes a while",
            click.get_current_context(),
        )
    lines = [f"groups = {_list(groups)}", _moment("from_ms", _now_ms() + wait_ms)]
    if fresh_ms is not None:
        lines.append(f"fresh_ms = {fresh_ms}")
    _echo_table("demands", lines, "the file of everybody")
    return 0


@keys.command()
@click.argument("path", type=click.Path(path_type=Path))
def check(path: Path) -> int:
    """Check a key file and show its keys. Exit status 1 if the file must be changed."""
    try:
        ring = load_key_file(path)
    except KeyFileError as error:
        raise click.ClickException(str(error)) from error
    now_ms = _now_ms()
    click.echo(f"installation {ring.installation}")
    for key in ring.keys.values():
        signs = "signs" if key.can_sign else "verifies"
        click.echo(
            f"key {key.id}: {signs} as {key.role.value} of {', '.join(sorted(key.groups))},"
            f" {key.algorithm.value}, {_span(key.valid_from_ms, key.valid_until_ms)}"
        )
    for each in ring.demands:
        fresh = f", fresh for {each.fresh_ms} ms" if each.fresh_ms else ""
        click.echo(
            f"demanded of {', '.join(sorted(each.groups))}, {_span(each.from_ms, each.until_ms)}"
            f"{fresh}"
        )
    found = key_problems(ring, now_ms)
    for problem in found:
        click.echo(f"problem: {problem}", err=True)
    return 1 if found else 0


def _echo_table(kind: str, lines: list[str], whose: str) -> None:
    click.echo("\n".join([f"[[{kind}]]  # for {whose}", *lines, ""]))


def _list(groups: tuple[str, ...]) -> str:
    return "[" + ", ".join(f'"{group}"' for group in groups) + "]"


def _moment(name: str, at_ms: int) -> str:
    return f"{name} = {at_ms}  # {shown_time(at_ms)}"


def _span(since_ms: int, until_ms: int) -> str:
    begin = f"from {shown_time(since_ms)}" if since_ms else "from the beginning"
    return begin if until_ms >= NEVER_MS else f"{begin} until {shown_time(until_ms)}"


def _base64(data: bytes) -> str:
    return b64encode(data).decode()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000

"""`halfbridge tx commit` and `rollback`: an operator decides."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from halfbridge.checker.config import CheckerConfig
from halfbridge.cli import tx_decide_display as display
from halfbridge.cli.database import opened
from halfbridge.cli.operators import acting, confirm, who
from halfbridge.cli.options import JUDGING, json_option, load_settings, settings_options
from halfbridge.cli.times import moment_ms, span_ms
from halfbridge.serde.records import COUNT_UNKNOWN, ActionOutcome, OpKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from halfbridge.checker.admin.cluster import Cluster
    from halfbridge.checker.admin.decisions.consider import Considered
    from halfbridge.checker.admin.decisions.decider import Decided, FencePort
    from halfbridge.checker.admin.decisions.wish import Wish

FENCE_URL_VARIABLE = "HALFBRIDGE_FENCE_URL"
# An op was written, and another decision stands before it.
EXIT_OVERRULED = 3
_MESSAGES_MAX = 1_000
_LIMIT_MAX = 100_000
# Decisions that are written before they are read back together.
_BATCH = 100


def _messages(text: str) -> int:
    """Return a message count; `all` is COUNT_UNKNOWN; a type of options."""
    if text == "all":
        return COUNT_UNKNOWN
    if not (text.isascii() and text.isdecimal() and 0 < int(text) <= _MESSAGES_MAX):
        raise click.BadParameter(f"{text!r} is not allowed; allowed: 1 to {_MESSAGES_MAX}, or all")
    return int(text)


_OPTIONS = (
    click.argument("transaction_id", metavar="[ID]", required=False),
    click.option(
        "--fence-url",
        envvar=FENCE_URL_VARIABLE,
        default=None,
        metavar="URL",
        help="SQLAlchemy URL of the database with the fence of the local transactions: the fence"
        f" row decides. [{FENCE_URL_VARIABLE}]",
    ),
    click.option("--fence-name", default="halfbridge_fence", show_default=True, help="Its table."),
    click.option("--fence-schema", default=None, help="Its schema. [default: the user's]"),
    click.option(
        "--force",
        is_flag=True,
        help="Decide also what is younger than its first check: its producer is dead. Commit also"
        " where messages are missing: they become dead letters.",
    ),
    click.option("--dry-run", is_flag=True, help="Say what would happen; write nothing."),
    click.option(
        "--from",
        "from_ms",
        type=moment_ms,
        default=None,
        metavar="TIME",
        help="Look for ID from here on. [default: the time in the id]",
    ),
    click.option(
        "--partition", type=click.IntRange(0), default=None, help="Look in this half partition."
    ),
    click.option("--all", "is_all", is_flag=True, help="Decide many; needs --older-than."),
    click.option(
        "--older-than", type=span_ms, default=None, metavar="SPAN", help="With --all: such as 10m."
    ),
    click.option("--group", default="", metavar="NAME", help="With --all: of this group only."),
    click.option(
        "--limit",
        type=click.IntRange(1, _LIMIT_MAX),
        default=1_000,
        show_default=True,
        help="With --all: the oldest so many.",
    ),
    click.option(
        "--rate",
        type=click.FloatRange(0.01, 10_000.0),
        default=50.0,
        show_default=True,
        help="With --all: decisions a second.",
    ),
)


def _decision(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument and the options of both commands."""
    command = settings_options(CheckerConfig, only=JUDGING)(json_option(acting(command)))
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command()
@click.option(
    "--messages",
    type=_messages,
    default=None,
    metavar="N",
    help="How many messages the transaction has; `all`: those that are there, also if it was"
    " half sent. Needed without --fence-url.",
)
@_decision
def commit(**values: Any) -> int:
    """Commit an undecided transaction: its messages are delivered.

    Shows what would happen, asks, and reads back whether this decision is the first. Exit status 0:
    it is; 3: another decision was written before; 1: refused, failed or not known.
    """
    if (values["messages"] is None) == (values["fence_url"] is None):
        raise click.UsageError(
            "give one of --messages N, --messages all, and --fence-url, whose row has the number",
            click.get_current_context(),
        )
    return _decide(OpKind.COMMIT, values)


@click.command()
@_decision
def rollback(**values: Any) -> int:
    """Roll an undecided transaction back: its messages are never delivered.

    Shows what would happen, asks, and reads back whether this decision is the first. Exit status 0:
    it is; 3: another decision was written before; 1: refused, failed or not known. Without
    --fence-url make sure that the local transaction has not committed, and cannot commit any more.
    """
    return _decide(OpKind.ROLLBACK, {**values, "messages": None})


def _decide(kind: OpKind, values: dict[str, Any]) -> int:
    # Imported here: --help does not need the Kafka client.
    from halfbridge.checker.admin.decisions.wish import Wish, refusal_of
    from halfbridge.checker.admin.judging import judging_cluster

    _check_usage(values)
    config = load_settings(CheckerConfig, values)
    count = COUNT_UNKNOWN if values["messages"] is None else values["messages"]
    wish = Wish(kind=kind, reason=values["reason"], message_count=count)
    cluster = judging_cluster(config)
    considered = _considered(cluster, config, values)
    judged = [
        (each, refusal_of(each, wish, force=values["force"])) for each in considered.transactions
    ]
    chosen = [each for each, refusal in judged if not refusal]
    display.tell(considered, wish, judged, has_fence=values["fence_url"] is not None)
    if values["dry_run"]:
        display.show_dry_run(considered, wish, judged, as_json=values["as_json"])
        return 1 if considered.stopped else 0
    if chosen:
        question = f"{kind.value} {len(chosen)} of these?" if values["is_all"] else f"{kind.value}?"
        if not confirm(question, yes=values["yes"]):
            raise click.Abort
    elif not values["is_all"]:
        raise click.ClickException(f"{considered.transactions[0].id}: {judged[0][1]}")
    decided = _written(cluster, wish, considered._replace(transactions=chosen), values)
    if values["is_all"]:
        display.show_many(decided, considered, judged, as_json=values["as_json"])
    else:
        display.show_one(decided[0], as_json=values["as_json"])
    return _status(decided, considered)


def _check_usage(values: dict[str, Any]) -> None:
    context = click.get_current_context()
    if values["is_all"] == (values["transaction_id"] is not None):
        raise click.UsageError("give either ID or --all", context)
    if values["is_all"] and values["older_than"] is None:
        raise click.UsageError("--all needs --older-than SPAN", context)
    if not values["is_all"] and (values["older_than"] is not None or values["group"]):
        raise click.UsageError("--older-than and --group need --all", context)


def _considered(cluster: Cluster, config: CheckerConfig, values: dict[str, Any]) -> Considered:
    from halfbridge.checker.admin.decisions.consider import (
        consider_many,
        consider_one,
    )
    from halfbridge.checker.admin.transactions.listing import Filter
    from halfbridge.checker.admin.transactions.look_up import Wanted

    partition = values["partition"]
    if values["is_all"]:
        wanted = Filter(
            group=values["group"],
            older_than_ms=values["older_than"],
            partitions=None if partition is None else (partition,),
            limit=values["limit"],
        )
        return consider_many(cluster, config.names, wanted)
    one = Wanted(id=values["transaction_id"], from_ms=values["from_ms"], partition=partition)
    return consider_one(cluster, config.names, one, tell=lambda line: click.echo(line, err=True))


def _written(
    cluster: Cluster, wish: Wish, considered: Considered, values: dict[str, Any]
) -> list[Decided]:
    from halfbridge.checker.admin.appending import appending
    from halfbridge.checker.admin.decisions.decider import Decider
    from halfbridge.checker.admin.operator_log import OperatorLog

    names, chosen = load_settings(CheckerConfig, values).names, considered.transactions
    decided: list[Decided] = []
    with _fence(values) as fence, appending(cluster) as appender:
        log = OperatorLog(cluster, names, appender, who=who(values))
        decider = Decider(cluster, names, log, appender, wish=wish, fence=fence)
        for at in range(0, len(chosen), _BATCH):
            batch = chosen[at : at + _BATCH]
            decided += decider.decide(batch, considered.ends, pause_s=1.0 / values["rate"])
            if values["is_all"]:
                click.echo(f"{len(decided)} of {len(chosen)} tried", err=True)
    return decided


@contextmanager
def _fence(values: dict[str, Any]) -> Iterator[FencePort | None]:
    if values["fence_url"] is None:
        yield None
        return
    with opened(values["fence_url"], option="--fence-url") as engine:
        from halfbridge.sql.fence_operator import OperatorFence

        yield OperatorFence(engine, name=values["fence_name"], schema=values["fence_schema"])


def _status(decided: Sequence[Decided], considered: Considered) -> int:
    outcomes = {each.outcome for each in decided}
    if outcomes & {ActionOutcome.FAILED, ActionOutcome.IN_DOUBT} or considered.stopped:
        return 1
    return EXIT_OVERRULED if ActionOutcome.OVERRULED in outcomes else 0

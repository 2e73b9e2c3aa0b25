"""`halfbridge tx`: list undecided transactions, show the life of one, and decide."""

from __future__ import annotations

import gc
import json
from contextlib import contextmanager
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, cast

import click

from halfbridge.checker.config import CheckerConfig
from halfbridge.cli import tx_display as display
from halfbridge.cli.options import (
    JUDGING,
    acting,
    confirm,
    connected,
    json_option,
    limit_option,
    load_settings,
    opened,
    settings_options,
    span_ms,
    time_option,
    together,
    who,
)
from halfbridge.cli.schema_registry import PayloadTexts, registry_option
from halfbridge.logs import one_line
from halfbridge.serde.records import COUNT_UNKNOWN, ActionOutcome, OpKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from halfbridge.checker.admin.cluster import Cluster
    from halfbridge.checker.admin.decisions import Candidates, Decided, DecisionRequest, FencePort
    from halfbridge.checker.admin.transactions.life import Life

# Rows that `--watch` shows unless --limit says otherwise: a screen.
_WATCH_ROWS = 40
_WATCH_S = 2.0  # time to read a screen; one search of the logs takes a part of it
# Transactions that `tx find` shows: a screen, which a person can read.
_FOUND, _FOUND_MAX = 20, 1_000
_PROGRESS_S = 1.0  # between two lines of progress


@click.group()
def tx() -> None:
    """See undecided transactions and the life of one, find them by key, and decide them.

    The commands read the logs. They work beside running daemons and without one, join no group and
    commit no offsets. `commit` and `rollback` decide a transaction; the others change nothing.
    """


def _messages(text: str) -> int:
    """Return a message count; `all` is COUNT_UNKNOWN; a type of options."""
    if text == "all":
        return COUNT_UNKNOWN
    if not (text.isascii() and text.isdecimal() and 0 < int(text) <= _MESSAGES_MAX):
        raise click.BadParameter(f"{text!r} is not allowed; allowed: 1 to {_MESSAGES_MAX}, or all")
    return int(text)


FENCE_URL_VARIABLE = "HALFBRIDGE_FENCE_URL"
_LIMIT_MAX = 100_000  # transactions that one command holds in memory
_JUDGING = settings_options(CheckerConfig, only=JUDGING)
_decision = together(
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
        help="Decide also before the first check is due: the producer is dead. Commit also"
        " where messages are missing: they become dead letters.",
    ),
    click.option("--dry-run", is_flag=True, help="Say what would happen; write nothing."),
    time_option("from", "Look for ID from here on. [default: the time in the id]"),
    click.option(
        "--partition", type=click.IntRange(0), default=None, help="Look in this half partition."
    ),
    click.option("--all", "is_all", is_flag=True, help="Decide many; needs --older-than."),
    click.option(
        "--older-than", type=span_ms, default=None, metavar="SPAN", help="With --all: such as 10m."
    ),
    click.option("--group", default="", metavar="NAME", help="With --all: of this group only."),
    limit_option(_LIMIT_MAX, 1_000, "With --all: the oldest so many."),
    click.option(
        "--rate",
        type=click.FloatRange(0.01, 10_000.0),
        default=50.0,
        show_default=True,
        help="With --all: decisions a second.",
    ),
    _JUDGING,
    json_option,
    acting,
)


@tx.command()
@click.option(
    "--messages",
    type=_messages,
    default=None,
    metavar="N",
    help="How many messages the transaction has; `all`: those that are there, also if it was"
    " half sent. Needed without --fence-url.",
)
@_decision
def commit(**values: object) -> int:
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


@tx.command()
@_decision
def rollback(**values: object) -> int:
    """Roll an undecided transaction back: its messages are never delivered.

    Shows what would happen, asks, and reads back whether this decision is the first. Exit status 0:
    it is; 3: another decision was written before; 1: refused, failed or not known. Without
    --fence-url make sure that the local transaction has not committed, and cannot commit any more.
    """
    return _decide(OpKind.ROLLBACK, {**values, "messages": None})


@tx.command(name="list")
@click.option("--group", default="", metavar="NAME", help="Only of this producer group.")
@click.option("--topic", default="", metavar="NAME", help="Only to this real topic.")
@click.option(
    "--older-than",
    type=span_ms,
    default="0s",
    metavar="SPAN",
    help="Only of this age or more, such as 10m.",
)
@click.option(
    "--partition",
    "partitions",
    type=click.IntRange(0),
    multiple=True,
    help="Only in this half partition. May be repeated.",
)
@click.option("--limit", type=click.IntRange(1), default=None, help="Most rows. [default: all]")
@click.option("--watch", is_flag=True, help="Show the list again and again, until Ctrl-C.")
@json_option
@_JUDGING
def list_command(*, watch: bool, as_json: bool, **values: Any) -> int:
    """List undecided transactions, the oldest first.

    CHECKS is asked/answered. Exit status 1: a pair is stopped, and what is undecided in that pair
    is not known.
    """
    from halfbridge.checker.admin.transactions import plain
    from halfbridge.checker.admin.transactions.undecided import Filter, list_undecided

    cluster, config = connected(values, judges=True)
    wanted = Filter(
        group=values["group"],
        topic=values["topic"],
        older_than_ms=values["older_than"],
        partitions=values["partitions"] or None,
        limit=values["limit"] or (_WATCH_ROWS if watch and not as_json else None),
    )
    while True:
        with _no_collections():
            found = list_undecided(cluster, config.names, wanted, on_progress=_counting())
        if as_json:
            click.echo(json.dumps(plain.listing(found, with_keys=True)))
        else:
            if watch:
                click.clear()
            display.show_list(found, wanted)
        display.show_stopped(found.stopped)
        if not watch:
            return 1 if found.stopped else 0
        sleep(_WATCH_S)


@tx.command(name="find")
@click.option(
    "--key",
    required=True,
    metavar="KEY",
    help="Of a message: as text, as `tx list` prints it, or 0x and hexadecimal digits.",
)
@click.option("--group", default="", metavar="NAME", help="Only of this producer group.")
@click.option("--topic", default="", metavar="NAME", help="Only messages to this real topic.")
@time_option("since", "Only messages stored since then: 2h, 7d, or a date.", default="1h")
@time_option("until", "Only messages stored before.  [default: now]")
@limit_option(_FOUND_MAX, _FOUND, "Most transactions, the newest ones.")
@json_option
@_JUDGING
def find_command(*, as_json: bool, **values: Any) -> int:
    """Find transactions by the key of a message, and say what became of each.

    All half messages since --since are read, and no more than the newest 10,000,000. Exit status 1:
    no transaction was found.
    """
    from halfbridge.checker.admin.transactions import plain
    from halfbridge.checker.admin.transactions.find import FindQuery, find

    cluster, config = connected(values, judges=True)
    names = ("key", "group", "topic", "since_ms", "until_ms", "limit")
    sought = FindQuery(**{name: values[name] for name in names})
    with _no_collections():
        found = find(cluster, config.names, sought, on_progress=_print_progress)
    if as_json:
        click.echo(json.dumps({**plain.found(found), "key": sought.key}))
    display.show_found(found, sought, only_notes=as_json)
    return 0 if found.hits else 1


look_up_options = together(
    click.argument("transaction_id", metavar="ID"),
    time_option("from", "Look from here on. [default: the time in the id]"),
    time_option("until", "Look no further. [default: until it is settled, or to the end]"),
    click.option(
        "--partition",
        type=click.IntRange(0),
        default=None,
        help="Look in this half partition only. [default: all]",
    ),
)


@tx.command()
@look_up_options
@click.option("--payload", is_flag=True, help="Show keys, values and headers too.")
@registry_option
@json_option
@_JUDGING
def show(*, as_json: bool, schema_registry: str | None, **values: object) -> int:
    """Show the whole life of one transaction, in order, with times and places.

    Exit status 1: no record of it was found.
    """
    from halfbridge.checker.admin.transactions import plain

    registry = None if schema_registry is None else PayloadTexts(schema_registry)
    life = _life(values)
    if as_json:
        body = plain.life(life)
        events = cast("list[dict[str, dict[str, object]]]", body["events"])
        for each, event in zip(life.events, events, strict=True):
            if registry is not None and each.payload is not None:
                sent = {"key": each.payload.key, "value": each.payload.value}
                found = {name: registry.decoded(data) for name, data in sent.items()}
                payload = event["payload"]
                payload["decoded"] = {name: one.text for name, one in found.items()}
                payload["not_decoded"] = {name: one.why_not for name, one in found.items()}
        click.echo(json.dumps(body))
    else:
        display.show_life(life, registry)
    return _status(life)


@tx.command()
@look_up_options
@json_option
@_JUDGING
def explain(*, as_json: bool, **values: object) -> int:
    """Say why a transaction is where it is, what happens next, and what can be done.

    Exit status 1: no record of it was found.
    """
    from halfbridge.checker.admin.transactions.explain import explain as sentences

    life = _life({**values, "payload": False})
    lines = sentences(life)
    if as_json:
        click.echo(json.dumps({"id": life.id, "state": life.state, "sentences": lines}))
    else:
        for sentence in lines:
            click.echo(one_line(sentence))
    return _status(life)


def _life(values: dict[str, Any]) -> Life:
    from halfbridge.checker.admin.transactions.look_up import Wanted, look_up

    cluster, config = connected(values, judges=True)
    wanted = Wanted(
        id=values["transaction_id"],
        from_ms=values["from_ms"],
        until_ms=values["until_ms"],
        partition=values["partition"],
        with_payload=values["payload"],
    )
    with _no_collections():
        return look_up(cluster, config.names, wanted, on_progress=_print_progress)


def _status(life: Life) -> int:
    from halfbridge.checker.admin.transactions.life import NOT_FOUND

    if life.state != NOT_FOUND:
        return 0
    click.echo(
        f"no transaction {one_line(life.id)} was found: check the id and --topic-prefix, or give"
        " --from TIME",
        err=True,
    )
    return 1


@contextmanager
def _no_collections() -> Iterator[None]:
    """Disable the garbage collector: it would traverse 100,000 entries again and again.

    The process ends with the command, so uncollected memory is released soon.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _print_progress(line: str) -> None:
    click.echo(line, err=True)


def _counting() -> Callable[[int], None]:
    """Return a function that shows a number of records on standard error, once a second."""
    reported_at = monotonic()

    def count(number: int) -> None:
        nonlocal reported_at
        if monotonic() - reported_at > _PROGRESS_S:
            reported_at = monotonic()
            _print_progress(f"{number} records read")

    return count


# An op was written after another decision.
EXIT_OVERRULED = 3
# A typing error is noticed, and a transaction with more messages is decided by `all`.
_MESSAGES_MAX = 1_000
# Decisions that are written before they are read back together: those of two seconds at the default
# rate. Reading back costs questions to brokers.
_BATCH = 100


def _decide(kind: OpKind, values: dict[str, Any]) -> int:
    from halfbridge.checker.admin.decisions import DecisionRequest, refusal_of

    _check_usage(values)
    cluster, config = connected(values, judges=True)
    count = COUNT_UNKNOWN if values["messages"] is None else values["messages"]
    requested = DecisionRequest(kind=kind, reason=values["reason"], message_count=count)
    candidates = _considered(cluster, config, values)
    judged = [
        (each, refusal_of(each, requested, force=values["force"]))
        for each in candidates.transactions
    ]
    chosen = [each for each, refusal in judged if not refusal]
    display.show_preview(candidates, requested, judged, has_fence=values["fence_url"] is not None)
    if values["dry_run"]:
        display.show_dry_run(candidates, requested, judged, as_json=values["as_json"])
        return 1 if candidates.stopped else 0
    if chosen:
        question = f"{kind.value} {len(chosen)} of these?" if values["is_all"] else f"{kind.value}?"
        if not confirm(question, yes=values["yes"]):
            raise click.Abort
    elif not values["is_all"]:
        raise click.ClickException(f"{candidates.transactions[0].id}: {judged[0][1]}")
    decided = _written(cluster, requested, candidates._replace(transactions=chosen), values)
    if values["is_all"]:
        display.show_many(decided, candidates, judged, as_json=values["as_json"])
    else:
        display.show_one(decided[0], as_json=values["as_json"])
    return _decided_status(decided, candidates)


def _check_usage(values: dict[str, Any]) -> None:
    context = click.get_current_context()
    if values["is_all"] == (values["transaction_id"] is not None):
        raise click.UsageError("give either ID or --all", context)
    if values["is_all"] and values["older_than"] is None:
        raise click.UsageError("--all needs --older-than SPAN", context)
    if not values["is_all"] and (values["older_than"] is not None or values["group"]):
        raise click.UsageError("--older-than and --group need --all", context)


def _considered(cluster: Cluster, config: CheckerConfig, values: dict[str, Any]) -> Candidates:
    from halfbridge.checker.admin.decisions import find_candidate, find_candidates
    from halfbridge.checker.admin.transactions.look_up import Wanted
    from halfbridge.checker.admin.transactions.undecided import Filter

    partition = values["partition"]
    if values["is_all"]:
        wanted = Filter(
            group=values["group"],
            older_than_ms=values["older_than"],
            partitions=None if partition is None else (partition,),
            limit=values["limit"],
        )
        return find_candidates(cluster, config.names, wanted)
    one = Wanted(id=values["transaction_id"], from_ms=values["from_ms"], partition=partition)
    return find_candidate(cluster, config.names, one, on_progress=_print_progress)


def _written(
    cluster: Cluster, requested: DecisionRequest, candidates: Candidates, values: dict[str, Any]
) -> list[Decided]:
    from halfbridge.checker.admin.appending import appending
    from halfbridge.checker.admin.decisions import Decider
    from halfbridge.checker.admin.operator_log import OperatorLog

    names, chosen = load_settings(CheckerConfig, values).names, candidates.transactions
    decided: list[Decided] = []
    with _fence(values) as fence, appending(cluster) as appender:
        log = OperatorLog(cluster, names, appender, who=who(values))
        decider = Decider(cluster, names, log, appender, requested=requested, fence=fence)
        for at in range(0, len(chosen), _BATCH):
            batch = chosen[at : at + _BATCH]
            decided += decider.decide(batch, candidates.ends, pause_s=1.0 / values["rate"])
            if values["is_all"]:
                _print_progress(f"{len(decided)} of {len(chosen)} tried")
    return decided


@contextmanager
def _fence(values: dict[str, Any]) -> Iterator[FencePort | None]:
    if values["fence_url"] is None:
        yield None
        return
    with opened(values["fence_url"], option="--fence-url") as engine:
        from halfbridge.sql.fence_table import OperatorFence

        yield OperatorFence(engine, name=values["fence_name"], schema=values["fence_schema"])


def _decided_status(decided: Sequence[Decided], candidates: Candidates) -> int:
    outcomes = {each.outcome for each in decided}
    if outcomes & {ActionOutcome.FAILED, ActionOutcome.IN_DOUBT} or candidates.stopped:
        return 1
    return EXIT_OVERRULED if ActionOutcome.OVERRULED in outcomes else 0

"""`halfbridge spark responder`: answers the checks of a `txn_half` sink until it is stopped.

    halfbridge spark responder --bootstrap-servers localhost:9092 --app-id orders-feed

It needs no Spark session. Run one or more as a service, besides the query: then no transaction of a
driver that dies between its manifest and its decisions stays undecided. Exit status: 0 stopped by
SIGTERM or SIGINT, 1 it could not start.
"""

from __future__ import annotations

import json
import threading
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from halfbridge.bridge import BridgeError
from halfbridge.signals import on_signals
from halfbridge.spark_jobs.errors import JobError
from halfbridge.spark_jobs.jobs.options import (
    EXIT_DONE,
    JobCommand,
    bootstrap_servers_option,
    json_option,
    librdkafka_option,
    prefix_option,
    sink_key_file_option,
)

if TYPE_CHECKING:
    from halfbridge.spark.checker import SinkResponder


@click.command(cls=JobCommand)
@bootstrap_servers_option
@prefix_option
@click.option(
    "--app-id",
    "app_ids",
    multiple=True,
    required=True,
    metavar="NAME",
    help="A sink's option app.id. May be repeated.",
)
@click.option(
    "--producer-group",
    default="",
    metavar="NAME",
    help="The sinks' option producer.group, where it was set; then for all --app-id together.",
)
@click.option(
    "--batch-age-max-ms",
    type=click.IntRange(min=1_000),
    default=None,
    metavar="N",
    help="The sinks' option batch.age.max.ms, where it was set.",
)
@sink_key_file_option
@librdkafka_option
@json_option
def main(
    *,
    bootstrap_servers: str,
    topic_prefix: str,
    app_ids: tuple[str, ...],
    producer_group: str,
    batch_age_max_ms: int | None,
    key_file: str,
    kafka: dict[str, str],
    as_json: bool,
) -> int:
    """Answer the checks of txn_half sinks until stopped (SIGTERM or SIGINT)."""
    from halfbridge.spark.checker import SinkResponder  # noqa: PLC0415 (--help needs no pyarrow)

    stop = threading.Event()
    # One producer group is one responder, whichever apps share it.
    apps = app_ids[:1] if producer_group else app_ids
    try:
        with ExitStack() as stack:
            responders = [
                stack.enter_context(
                    SinkResponder(
                        bootstrap_servers=bootstrap_servers,
                        app_id=app_id,
                        producer_group=producer_group,
                        prefix=topic_prefix,
                        age_ms_max=batch_age_max_ms,
                        key_file=key_file,
                        kafka=kafka,
                    )
                )
                for app_id in apps
            ]
            for responder in responders:
                click.echo(f"answering checks of {responder.options.producer_group}", err=True)
            with on_signals(lambda _number: stop.set()):
                stop.wait()
            _show(responders, as_json=as_json)
    except BridgeError as error:
        raise JobError(str(error)) from error
    return EXIT_DONE


def _show(responders: list[SinkResponder], *, as_json: bool) -> None:
    for responder in responders:
        group = responder.options.producer_group
        counts = asdict(responder.counts())
        if as_json:
            click.echo(json.dumps({"producer_group": group, **counts}))
        else:
            text = ", ".join(f"{name} {count}" for name, count in counts.items())
            click.echo(f"{group}: {text}")


if __name__ == "__main__":
    main()

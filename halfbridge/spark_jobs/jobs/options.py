"""What the commands of all jobs share: options, exit statuses, errors of one line.

Exit status: 0 done, nothing found; 1 it did not work, or wrong usage; 2 done, with findings. So a
scheduler tells "look at the report" from "run it again" without reading any text.
"""

from __future__ import annotations

import json
import re
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from halfbridge.java.jvm import JavaNotFoundError
from halfbridge.java.locked_jars import JarsError
from halfbridge.serde.errors import KeyFileError
from halfbridge.serde.settings import SettingError, variable
from halfbridge.spark_jobs.errors import JobError, cause_of
from halfbridge.spark_jobs.reading.topics import cluster_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyspark.sql.streaming.readwriter import DataStreamWriter

EXIT_DONE = 0  # errors have 1, click's own and POSIX's
EXIT_FINDINGS = 2

_INTERVAL = re.compile(r"([1-9]\d{0,5})\s*(ms|s|m|h)")
_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours"}
_AVAILABLE_NOW = "available-now"
_PORT_MAX = 65535  # 16 bits of TCP
# As client and daemon read them.
_SERVERS_VARIABLE = variable("bootstrap_servers")
_PREFIX_VARIABLE = variable("topic_prefix")


class _OneLineErrors(click.Command):
    """Turns errors that the user can correct into one line and exit status 1."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: object,
    ) -> click.Context:
        """Read the command line."""
        with _one_line_errors():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> object:
        """Run; a returned number is the exit status."""
        with _one_line_errors():
            status = super().invoke(ctx)
        if ctx.parent is None and isinstance(status, int):
            ctx.exit(status)  # click itself would drop it
        return status


class JobCommand(_OneLineErrors):
    """A job's command. It returns the exit status: EXIT_DONE or EXIT_FINDINGS.

    JobError, JarsError, JavaNotFoundError, KeyFileError, SettingError, OSError and whatever PySpark
    raises end as one line.
    """


class JobGroup(_OneLineErrors, click.Group):
    """A group of such commands."""


@contextmanager
def _one_line_errors() -> Iterator[None]:
    try:
        yield
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "the command"
        text = " ".join(error.format_message().split())
        raise click.ClickException(f"{text} (see `{path} --help`)") from error
    except (JobError, JarsError, JavaNotFoundError, KeyFileError, SettingError) as error:
        raise click.ClickException(" ".join(str(error).split())) from error
    except OSError as error:
        raise click.ClickException(" ".join(f"{type(error).__name__}: {error}".split())) from error
    except Exception as error:
        if not _is_sparks(error):
            raise  # a defect: a traceback is what helps
        raise click.ClickException(cause_of(error)) from error


def _is_sparks(error: Exception) -> bool:
    """Tell whether PySpark raised `error`, without importing it for a command that did not."""
    if "pyspark" not in sys.modules:
        return False
    from halfbridge.spark_jobs.capabilities import SPARK_ERRORS  # noqa: PLC0415  (--help: no Spark)

    return isinstance(error, SPARK_ERRORS)


@dataclass(frozen=True, slots=True)
class Trigger:
    """When a streaming job reads new rows."""

    # In Spark's form (`10 seconds`); None: read the rows that are there now, and end.
    interval: str | None = None

    def set_in(self, writer: DataStreamWriter) -> DataStreamWriter:
        """Return the writer with this trigger."""
        if self.interval is None:
            return writer.trigger(availableNow=True)
        return writer.trigger(processingTime=self.interval)


AVAILABLE_NOW = Trigger()


def _trigger(_context: click.Context, _option: click.Parameter, given: str) -> Trigger:
    if given == _AVAILABLE_NOW:
        return AVAILABLE_NOW
    if match := _INTERVAL.fullmatch(given):
        return Trigger(f"{match[1]} {_UNITS[match[2]]}")
    raise click.BadParameter(f"{given!r} is neither {_AVAILABLE_NOW} nor a time such as 10s or 5m")


def pairs(
    _context: click.Context, _option: click.Parameter, given: Iterable[str]
) -> dict[str, str]:
    """Return the pairs of a repeated option NAME=VALUE, as its callback."""
    split = [each.partition("=") for each in given]
    if wrong := [name for name, equals, _ in split if not name or not equals]:
        raise click.BadParameter(f"{wrong[0]!r} is not NAME=VALUE")
    return {name: value for name, _, value in split}


def _writable(_context: click.Context, _option: click.Parameter, given: Path | None) -> Path | None:
    """Find out now: the report is written when all the work is done."""
    if given is not None and not given.absolute().parent.is_dir():
        raise click.BadParameter(f"there is no directory {given.parent}")
    return given


# As decorators. Each says under which keyword the command gets the value.

# Keyword `bootstrap_servers`, of type `str`.
bootstrap_servers_option = click.option(
    "--bootstrap-servers",
    envvar=_SERVERS_VARIABLE,
    required=True,
    metavar="HOST:PORT,...",
    help=f"The cluster. [env: {_SERVERS_VARIABLE}]",
)


def _kafka_option(text: str) -> Callable[[Callable[..., object]], Callable[..., object]]:
    return click.option(
        "--kafka-opt",
        "kafka",
        multiple=True,
        callback=pairs,
        metavar="NAME=VALUE",
        help=f"{text} May be repeated.",
    )


# Both: keyword `kafka`, of type `dict[str, str]`.
kafka_option = _kafka_option(
    "A property of Spark's (Java) Kafka client, such as security.protocol=SSL."
)
librdkafka_option = _kafka_option("A property of librdkafka, such as ssl.ca.location=ca.pem.")
# Keyword `topic_prefix`, of type `str`.
prefix_option = click.option(
    "--topic-prefix",
    "--prefix",
    "topic_prefix",
    envvar=_PREFIX_VARIABLE,
    default="",
    metavar="TEXT",
    help=f"Prefix of the installation's internal topics. [env: {_PREFIX_VARIABLE}]",
)
_KEY_FILE_VARIABLE = variable("key_file")
# Keyword `key_file`, of type `Path | None`: who reads judges by it.
key_file_option = click.option(
    "--key-file",
    type=click.Path(path_type=Path),
    envvar=_KEY_FILE_VARIABLE,
    help=f"The daemon's keys: records are judged as the daemon does. [env: {_KEY_FILE_VARIABLE}]",
)
# Keyword `key_file`, of type `str`: who writes by the sink signs with it.
sink_key_file_option = click.option(
    "--key-file",
    default="",
    metavar="PATH",
    envvar=_KEY_FILE_VARIABLE,
    help=f"The sink's option key.file: records are signed with it. [env: {_KEY_FILE_VARIABLE}]",
)
# Keyword `topics`, of type `tuple[str, ...]`.
topics_option = click.option(
    "--topic", "topics", multiple=True, metavar="NAME", help="A real topic. May be repeated."
)
# Keyword `checkpoint`, of type `str`, a path or a URI that Hadoop's file systems know.
checkpoint_option = click.option(
    "--checkpoint",
    required=True,
    metavar="PATH",
    help="Directory or URI of the progress; one for each job and output, on durable storage.",
)
# Keyword `trigger`, of type `Trigger`.
trigger_option = click.option(
    "--trigger",
    default=_AVAILABLE_NOW,
    show_default=True,
    callback=_trigger,
    metavar="available-now|TIME",
    help="Once for all that is there, or again and again, every 10s or 5m, until it is stopped.",
)
# Keyword `max_offsets`, of type `int | None`.
max_offsets_option = click.option(
    "--max-offsets",
    type=click.IntRange(min=1),
    default=None,
    metavar="N",
    help="Most offsets in a batch, all partitions together.",
)
# Keyword `metrics_port`, of type `int | None`.
metrics_port_option = click.option(
    "--metrics-port",
    type=click.IntRange(0, _PORT_MAX),
    default=None,
    metavar="PORT",
    help="Show Prometheus metrics on this port while the job runs; 0: a free port.",
)
# Keyword `as_json`, of type `bool`.
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON on standard output, nothing else."
)
# Keyword `report`, of type `Path | None`.
report_option = click.option(
    "--report",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    callback=_writable,
    default=None,
    metavar="PATH",
    help="Write the report, one JSON object, to this file.",
)
# Keyword `spark_options`, of type `dict[str, str]`, for `spark_session(options=...)`.
spark_option = click.option(
    "--spark-opt",
    "spark_options",
    multiple=True,
    callback=pairs,
    metavar="NAME=VALUE",
    help="An option of the local Spark session, such as spark.driver.memory=8g. May be repeated;"
    " under spark-submit, pass them to spark-submit.",
)


def common_options(command: Callable[..., object]) -> Callable[..., object]:
    """Add what every job has: --bootstrap-servers, --kafka-opt, --spark-opt, --json."""
    for option in (json_option, spark_option, kafka_option, bootstrap_servers_option):
        command = option(command)
    return command


def reading_options(bootstrap_servers: str, kafka: Mapping[str, str]) -> dict[str, str]:
    """Return `topics.cluster_options` of a command line, before a JVM is started.

    Raises UsageError: an option is wrong; the user corrects it.
    """
    try:
        return cluster_options(bootstrap_servers, kafka)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def write_report(path: Path | None, report: Mapping[str, object]) -> None:
    """Write `report` to `path` as JSON, all of it or nothing; no path, no file."""
    if path is None:
        return
    fresh = path.with_name(f"{path.name}.part")
    fresh.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    fresh.replace(path)

"""Compares the sink's age limit with the daemon's, as the settings topic has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.kafka.errors import BridgeError
from halfbridge.kafka.settings_topic import READING, read_settings
from halfbridge.serde.records import DaemonSettings
from halfbridge.spark_jobs.sink.clients import LOG, new_reader
from halfbridge.spark_jobs.sink.errors import SinkOptionError

if TYPE_CHECKING:
    from halfbridge.kafka.ports import Ports
    from halfbridge.spark_jobs.sink.options import SinkOptions

_ADVISED_PART = 3  # of the daemon's age, for its clock and its last checks


def check_age(options: SinkOptions, ports: Ports) -> None:
    """Check that no batch can be committed after the daemon gives up its half messages.

    The daemon's record is a hint: if it cannot be read, the daemon's defaults are assumed.

    Raises:
        SinkOptionError: one could be; the author of the query, or an operator, corrects a limit.
    """
    limit_ms = _daemon_settings(options, ports).transaction_age_ms_max
    if options.age_ms_max < limit_ms:
        return
    advised_ms = limit_ms // _ADVISED_PART
    raise SinkOptionError(
        f"option batch.age.max.ms is {options.age_ms_max}, and the daemon gives half messages up at"
        f" {limit_ms} ms (its transaction_age_ms_max, as {options.names.settings} says): part of a"
        f" batch would be published, and part not. Set the option to {advised_ms}"
        " or less, and --batch-age-max-ms of every responder with it; or raise the daemon's limit"
    )


def _daemon_settings(options: SinkOptions, ports: Ports) -> DaemonSettings:
    topic, problem = options.names.settings, ""
    reader = new_reader(options, ports, changes=READING)
    try:
        said, _ = read_settings(reader, topic, stop=ports.run.event(), clock=ports.clock)
        if said and said[-1].settings is not None:
            return said[-1].settings
        problem = said[-1].problem if said else ""
    except BridgeError as error:
        problem = str(error)
    finally:
        ports.run.let_go(reader)
    if problem:
        LOG.info("%s was not read (%s); the daemon's defaults are assumed", topic, problem)
    return DaemonSettings()

"""The daemon's record in the settings topic: written by each worker, and compared with others'.

A worker writes its limits when it starts, unless the last record has the same limits, and whenever
it finds other limits. So two workers with different settings both find and report the difference.
The record of a worker that is gone is replaced.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from halfbridge.checker.loop.clients import client_config, unjoined
from halfbridge.kafka.client_errors import failure_of
from halfbridge.kafka.error_log import ErrorLog
from halfbridge.kafka.errors import (
    BridgeError,
    KafkaFailure,
    RetriableError,
    TopicSetupError,
    bridge_error,
)
from halfbridge.kafka.settings_topic import READING, LimitsRecord, read_settings
from halfbridge.serde.delivery import DELIVERY_LIMIT, Delivery
from halfbridge.serde.records import DaemonSettings
from halfbridge.serde.settings_topic import DAEMON_KEY, encode_daemon_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfbridge.checker.config import CheckerConfig
    from halfbridge.checker.status import Status
    from halfbridge.kafka.ports import ClientError, Event, Ports, Running

_log = logging.getLogger("halfbridge.checker")
# Poll interval. A poll opens one or two connections and reads a few records. Wrong settings are
# reported some minutes late, and workers that disagree write a record at each poll.
POLL_S = 180.0
# How long the end of a worker waits for a poll; a reader notices its end within 0.1 s.
_STOP_S = 2.0
# Characters of another worker's name in a log line and in /healthz; slots are not longer.
_WORKER_CHARS_MAX = 120


class SettingsRecord:
    """Keeps the record up to date in a thread. Nothing in or about the topic stops the worker."""

    def __init__(
        self,
        mine: DaemonSettings,
        topic: SettingsTopic,
        status: Status,
        *,
        ports: Ports,
        create: str,
    ) -> None:
        self._mine = mine
        self._topic = topic
        self._status = status
        self._create = create
        self._end: int | None = None  # records below were compared; None before the first poll
        self._logged = ""
        self._trouble = ""
        self._ports = ports
        self._stopping = ports.run.event()
        self._running: Running | None = None

    def start(self) -> None:
        """Start the thread; returns at once."""
        self._running = self._ports.run.start(self._poll_on, "halfbridge-settings")

    def stop(self) -> None:
        """Stop the thread; a running poll is given up."""
        self._stopping.set()
        if self._running is not None:
            self._running.join(_STOP_S)

    def poll(self) -> None:
        """Read new records, report differences, and write the record if it is out of date."""
        try:
            said, end = self._topic.read(self._stopping)
            self._compare(said, end)
            if not said or not _says(said[-1], self._mine):
                self._write()
            self._report_trouble("")
        except TopicSetupError as error:
            self._report_trouble(
                f"{error}; clients assume the daemon's defaults. Run: {self._create}"
            )
        except BridgeError as error:
            if not self._stopping.is_set():
                self._report_trouble(str(error))

    def _poll_on(self) -> None:
        while True:
            try:
                self.poll()
            except Exception:  # noqa: BLE001 (logged; a hint that cannot be given stops no worker
                _log.exception("polling the settings record failed")
            if self._stopping.wait(POLL_S):
                return

    def _compare(self, said: Sequence[LimitsRecord], end: int) -> None:
        # If the topic was deleted and created again, its end is lower: then all records are new.
        compared = 0 if self._end is None or end < self._end else self._end
        new = [each for each in said if each.offset >= compared]
        if new and new[-1].problem:
            _log.warning(
                "the record of the daemon's limits at offset %d cannot be read (%s): it is"
                " written again",
                new[-1].offset,
                new[-1].problem,
            )
        # Records from before the start may be of workers that are gone, or of this worker.
        news = "" if self._end is None else disagreement(self._mine, new)
        self._end = end
        if news and news != self._logged:
            _log.warning("limits differ: %s", news)
        elif self._logged and not news:
            _log.info("workers run with the same limits again")
        self._logged = news
        self._status.set_problem("settings", news)
        self._status.metrics.settings_disagree(bool(news))

    def _write(self) -> None:
        self._topic.write(self._mine._replace(timestamp=self._ports.clock.time_ms()))

    def _report_trouble(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            _log.warning("settings record: %s", trouble)
        self._trouble = trouble


def settings_record(
    config: CheckerConfig, slot: str, status: Status, ports: Ports
) -> SettingsRecord:
    """Return the record of a worker with `config` on `slot`, not started yet."""
    return SettingsRecord(
        limits_of(config, slot),
        SettingsTopic(config, ports),
        status,
        ports=ports,
        create=f"halfbridge topics create {config.names.options(config.bootstrap_servers)}",
    )


def limits_of(config: CheckerConfig, slot: str) -> DaemonSettings:
    """Return the limits of a daemon with `config`, as the record has them."""
    return DaemonSettings(
        worker=slot,
        transaction_timeout_ms=config.transaction_timeout_ms,
        check_interval_ms=config.check_interval_ms,
        check_count_max=config.check_count_max,
        transaction_age_ms_max=config.transaction_age_ms_max,
        further={
            DELIVERY_LIMIT: Delivery(config.delivery).number,
            "topic_gone_ms": config.topic_gone_ms,
        },
    )


def disagreement(mine: DaemonSettings, said: Sequence[LimitsRecord]) -> str:
    """Return how other workers' records differ from `mine` in the limits that both have."""
    here = mine.limits()
    for each in reversed(said):
        other = each.settings
        if other is None or other.worker == mine.worker:
            continue
        there = other.limits()
        differences = [
            f"{name} {_in_words(name, there[name])} (here {_in_words(name, limit)})"
            for name, limit in here.items()
            if there.get(name, limit) != limit
        ]
        if differences:
            return (
                f"worker {other.worker[:_WORKER_CHARS_MAX]!r} runs with other limits:"
                f" {', '.join(differences)}; give all workers of an installation the same settings"
                " and restart those that differ"
            )
    return ""


def _in_words(name: str, limit: int) -> str:
    mode = Delivery.of_number(limit) if name == DELIVERY_LIMIT else None
    return str(limit) if mode is None else mode.value


def _says(last: LimitsRecord, mine: DaemonSettings) -> bool:
    """Tell whether the last record has all limits of `mine`; a newer version may add limits."""
    settings = last.settings
    return settings is not None and mine.limits().items() <= settings.limits().items()


# For one record of 150 bytes. If no broker takes the record in this time, the next poll retries. As
# the time-out of a reading (`kafka.settings_topic.READ_S`): elections take less.
WRITE_S = 10.0
_PARTITION = 0  # the only one: the record has one order


class SettingsTopic:
    """The installation's settings topic. Its clients live as long as one call."""

    def __init__(self, config: CheckerConfig, ports: Ports) -> None:
        self._config = config
        self._ports = ports
        self._topic = config.names.settings

    def read(self, stop: Event) -> tuple[list[LimitsRecord], int]:
        """Return the records in offset order, and the end of the log; raises as `read_settings`."""
        ports, config = self._ports, self._config
        reader = ports.kafka.reader(
            {**client_config(config), **unjoined(config), **self._error_callback(), **READING}
        )
        try:
            return read_settings(reader, self._topic, stop=stop, clock=ports.clock)
        finally:
            ports.run.close_clients(reader)

    def write(self, settings: DaemonSettings) -> None:
        """Append the record of the daemon's limits; return once it is stored.

        Raises:
            TopicSetupError: no such topic, or no right to write to it; an operator acts.
            RetriableError, BridgeError: the record may not be stored; repeat the call later.
        """
        outcomes: list[ClientError | None] = []
        writer = self._ports.kafka.writer(
            {
                **client_config(self._config),
                **self._error_callback(),
                "enable.idempotence": True,
                "message.timeout.ms": int(WRITE_S * 1000),
                "linger.ms": 0,
            },
        )
        try:
            writer.produce(
                self._topic,
                encode_daemon_settings(settings),
                DAEMON_KEY,
                _PARTITION,
                lambda error, _: outcomes.append(error),
            )
            writer.flush(WRITE_S)
        except KafkaFailure as failure:
            raise bridge_error(failure) from failure
        if not outcomes:
            writer.purge()
            raise RetriableError(f"{self._topic}: no acknowledgement in {WRITE_S:g} s")
        if outcomes[0] is not None:
            raise bridge_error(failure_of(outcomes[0]))

    def _error_callback(self) -> dict[str, object]:
        return {"error_cb": ErrorLog(_log, self._ports.clock).note}

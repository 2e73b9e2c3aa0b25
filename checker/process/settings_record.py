"""The record of the daemon's limits: written, and compared with what other workers write.

A worker writes its limits when it starts, unless the last record says the same, and again whenever
it finds others. So two workers with different settings each find the other's record at every look
and both say so, and the record of a worker that is gone is replaced.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from halfbridge.bridge.errors import BridgeError, TopicSetupError
from halfbridge.checker.process.settings_topic import SettingsTopic
from halfbridge.serde.records import DaemonSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfbridge.bridge.ports import Event, Ports, Running
    from halfbridge.bridge.settings_topic import Said
    from halfbridge.checker.config import CheckerConfig
    from halfbridge.checker.status import Status

_log = logging.getLogger("halfbridge.checker")

# Between two looks. Each opens a connection or two and reads a few records; wrong settings may be
# told of some minutes late, and workers that contradict each other write a record each look.
LOOK_S = 180.0
# How long the end of a worker waits for a look; a reader notices within a tenth of a second.
_STOP_S = 2.0
# Of another worker's name, in a log line and in /healthz: slots are no longer.
_WORKER_CHARS_MAX = 120


class Topic(Protocol):
    """What is asked of `SettingsTopic`."""

    def read(self, stop: Event) -> tuple[list[Said], int]:
        """Return the daemon's records, and where the log ends."""

    def write(self, settings: DaemonSettings) -> None:
        """Append a record."""


class SettingsRecord:
    """Keeps the record true while a worker runs, beside the worker's loop.

    Nothing that stands in the topic, and no lack of a topic or right, stops the worker.

    Args:
        mine: The limits of this worker, and its slot.
        topic: Where they are written.
        status: Told while workers disagree.
        ports: Of which clock and concurrency are used.
        create: The command that makes the topic.
    """

    def __init__(
        self, mine: DaemonSettings, topic: Topic, status: Status, *, ports: Ports, create: str
    ) -> None:
        self._mine = mine
        self._topic = topic
        self._status = status
        self._create = create
        self._end: int | None = None  # of what was compared; None before the first look
        self._told = ""
        self._trouble = ""
        self._ports = ports
        self._stopping = ports.run.event()
        self._running: Running | None = None

    def start(self) -> None:
        """Begin; returns at once."""
        self._running = self._ports.run.start(self._look_on_and_on, "halfbridge-settings")

    def stop(self) -> None:
        """End; a look at hand is given up."""
        self._stopping.set()
        if self._running is not None:
            self._running.join(_STOP_S)

    def look(self) -> None:
        """Read what is new, say what differs, and write the record where it is not true."""
        try:
            said, end = self._topic.read(self._stopping)
            self._compare(said, end)
            if not said or not _says(said[-1], self._mine):
                self._write()
            self._tell_trouble("")
        except TopicSetupError as error:
            self._tell_trouble(
                f"{error}; clients assume the daemon's defaults. Run: {self._create}"
            )
        except BridgeError as error:
            if not self._stopping.is_set():
                self._tell_trouble(str(error))

    def _look_on_and_on(self) -> None:
        while True:
            try:
                self.look()
            except Exception:  # noqa: BLE001 (logged; a hint that cannot be given stops no worker
                _log.exception("the settings record was not looked at")
            if self._stopping.wait(LOOK_S):
                return

    def _compare(self, said: Sequence[Said], end: int) -> None:
        """Take what was written since the last look."""
        # A topic that was made anew ends before the old one did: all in it is new.
        compared = 0 if self._end is None or end < self._end else self._end
        new = [each for each in said if each.offset >= compared]
        if new and new[-1].problem:
            _log.warning(
                "the record of the daemon's limits at offset %d cannot be read (%s): it is"
                " written again",
                new[-1].offset,
                new[-1].problem,
            )
        # What stood there at the start may be of workers that are gone, or of this one.
        news = "" if self._end is None else disagreement(self._mine, new)
        self._end = end
        if news and news != self._told:
            _log.warning("%s", news)
        elif self._told and not news:
            _log.info("workers run with the same limits again")
        self._told = news
        self._status.set_ill("settings", news)
        self._status.metrics.settings_disagree(bool(news))

    def _write(self) -> None:
        self._topic.write(self._mine._replace(timestamp=self._ports.clock.time_ms()))

    def _tell_trouble(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            _log.warning("settings record: %s", trouble)
        self._trouble = trouble


def settings_record(
    config: CheckerConfig, slot: str, status: Status, ports: Ports
) -> SettingsRecord:
    """Return the record of a worker with `config` on `slot`, not started yet."""
    prefix = f" --topic-prefix {config.topic_prefix}" if config.topic_prefix else ""
    return SettingsRecord(
        limits_of(config, slot),
        SettingsTopic(config, ports),
        status,
        ports=ports,
        create=f"halfbridge topics create --bootstrap-servers {config.bootstrap_servers}{prefix}",
    )


def limits_of(config: CheckerConfig, slot: str) -> DaemonSettings:
    """Return the limits of a daemon with `config`, as clients are told them."""
    return DaemonSettings(
        worker=slot,
        transaction_timeout_ms=config.transaction_timeout_ms,
        check_interval_ms=config.check_interval_ms,
        check_count_max=config.check_count_max,
        transaction_age_ms_max=config.transaction_age_ms_max,
    )


def disagreement(mine: DaemonSettings, said: Sequence[Said]) -> str:
    """Return what other workers' records say otherwise than `mine`; empty where they do not.

    Limits that only one of the two versions has are none of it.
    """
    here = mine.limits()
    for each in reversed(said):
        other = each.settings
        if other is None or other.worker == mine.worker:
            continue
        there = other.limits()
        told = [
            f"{name} {there[name]} (here {limit})"
            for name, limit in here.items()
            if there.get(name, limit) != limit
        ]
        if told:
            return (
                f"worker {other.worker[:_WORKER_CHARS_MAX]!r} runs with other limits:"
                f" {', '.join(told)}; give all workers of an installation the same settings and"
                " restart those that differ"
            )
    return ""


def _says(last: Said, mine: DaemonSettings) -> bool:
    """Tell whether the last record has all limits of `mine`; a newer version may have more."""
    settings = last.settings
    return settings is not None and mine.limits().items() <= settings.limits().items()

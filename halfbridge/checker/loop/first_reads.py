"""Marks of pairs whose first records are being read, so that a record ends few processes.

A damaged record may end the process that reads it (`halfbridge.kafka.tasting`), and the
pair then moves to the next worker. So a worker leaves a mark in Kafka before it reads a pair, and
clears the mark once the pair is rebuilt. Whoever finds a mark has the pair's records read in a
child process first. Marks are offsets with a text in a group of their own, because workers on
different machines share nothing else; the offsets have no meaning, and the daemon's own offsets
are not touched.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from halfbridge.checker.loop.clients import FETCHING, QUESTION_S, client_config
from halfbridge.kafka.errors import KafkaFailure
from halfbridge.kafka.trouble import Troubles
from halfbridge.serde.topics import DEADLY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from halfbridge.checker.config import CheckerConfig
    from halfbridge.kafka.ports import Place, Ports
    from halfbridge.kafka.tasting import Deadly
    from halfbridge.serde.progress import Progress

    Taste = Callable[[Mapping[str, Any], Mapping[Place, int]], Deadly | None]

_log = logging.getLogger("halfbridge.checker")

_READING = "reading"


class FirstReads:
    """Marks pairs, and finds out about pairs that have a mark.

    Args:
        config: The daemon's settings.
        ports: Make the clients of the marks.
        taste: Reads records in a child process.
    """

    def __init__(self, config: CheckerConfig, ports: Ports, taste: Taste) -> None:
        self._config = config
        self._ports = ports
        self._taste = taste
        self._troubles = Troubles(_log, ports.clock)
        self._marked: set[int] = set()

    def begin(self, pairs: Mapping[int, Progress]) -> dict[int, str]:
        """Mark pairs, and return why some of them must not be read; blocks.

        Without an answer of the brokers no pair is held up.
        """
        if not pairs:
            return {}
        unsafe = {
            number: why
            for number in sorted(self._left_behind(pairs) - self._marked)  # not its own marks
            if (why := self._why_not(number, pairs[number]))
        }
        self._marked = set(pairs) - set(unsafe)
        self._write(
            {
                **dict.fromkeys(self._marked, _READING),
                **{number: DEADLY + why for number, why in unsafe.items()},
            }
        )
        return unsafe

    def rebuilt(self, numbers: Iterable[int]) -> None:
        """Clear the marks of pairs that were read to their ends."""
        cleared = self._marked & set(numbers)
        self._marked -= cleared
        self._write(dict.fromkeys(cleared, ""))

    def _left_behind(self, numbers: Iterable[int]) -> set[int]:
        places = [(self._config.names.half, number) for number in numbers]
        reader = self._reader()
        try:
            found = reader.committed(places, QUESTION_S)
        except KafkaFailure as failure:
            self._troubles.note(failure)
            return set()
        finally:
            self._ports.run.let_go(reader)
        return {number for (_, number), each in found.items() if each.metadata}

    def _why_not(self, number: int, progress: Progress) -> str:
        names = self._config.names
        _log.warning(
            "partition %d: a worker ended, or was stopped, while it read the first records; a child"
            " process reads them first",
            number,
        )
        starts = {(names.half, number): progress.half, (names.op, number): progress.ops_from}
        isolation = {"isolation.level": "read_committed", "group.id": names.daemon_group}
        found = self._taste({**FETCHING, **client_config(self._config), **isolation}, starts)
        if found is None:
            return ""
        return (
            f"{found.topic}[{found.partition}]@{found.offset}: the record there is damaged and ends"
            f" the process that reads it ({found.signal}); repair the partition from another"
            " replica: docs/operations.md, A damaged record"
        )

    def _write(self, texts: Mapping[int, str]) -> None:
        if not texts:
            return
        half = self._config.names.half
        reader = self._reader()
        try:
            reader.commit({(half, number): (0, text) for number, text in texts.items()})
        except KafkaFailure as failure:
            self._troubles.note(failure)
        finally:
            self._ports.run.let_go(reader)

    def _reader(self) -> Any:
        return self._ports.kafka.reader(
            {
                **client_config(self._config),
                "group.id": self._config.names.reading_group,
                "session.timeout.ms": self._config.session_timeout_ms,
                "enable.auto.commit": False,
            }
        )

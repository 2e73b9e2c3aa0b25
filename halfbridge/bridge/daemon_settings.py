"""What the client knows of the settings topic: the daemon's limits, and the operators' switch.

A thread of its own reads the topic when a producer starts, and what is new after that. The limits
are taken once: they change nothing that the client does, which only warns. The switch is followed.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from halfbridge.bridge.client_settings import reader_properties
from halfbridge.bridge.gate import Gate
from halfbridge.kafka.errors import BridgeError
from halfbridge.kafka.settings_topic import READING, read_topic
from halfbridge.kafka.trouble import tell
from halfbridge.serde.limits import (
    METADATA_BYTES_MAX,
    OP_BYTES_MAX,
    TRANSACTION_BYTES_MAX,
    TRANSACTION_MESSAGES_MAX,
)
from halfbridge.serde.records import DaemonSettings

if TYPE_CHECKING:
    from halfbridge.bridge.config import BridgeConfig
    from halfbridge.kafka.ports import Ports, Reader, Running
    from halfbridge.kafka.settings_topic import Reading, Said

_LOG = logging.getLogger("halfbridge.bridge")
# How long `close` waits for a reader; it notices within a tenth of a second.
_STOP_S = 2.0
# Between two looks at the topic: how late a client learns that operators stopped new transactions.
# A look is two small requests on an open connection.
FOLLOW_S = 10.0
# The largest things that this client may write, by the name of the daemon's limit.
_WRITTEN_MAX = {
    "metadata_bytes_max": METADATA_BYTES_MAX,
    "op_bytes_max": OP_BYTES_MAX,
    "transaction_messages_max": TRANSACTION_MESSAGES_MAX,
    "transaction_bytes_max": TRANSACTION_BYTES_MAX,
}


class DaemonLimits:
    """The daemon's limits as one producer knows them, and the operators' switch. Thread-safe.

    Args:
        config: The producer's.
        ports: What the topic is read with.

    Attributes:
        gate: What the switch says.
    """

    def __init__(self, config: BridgeConfig, ports: Ports) -> None:
        self._config = config
        self._ports = ports
        self._known: DaemonSettings | None = None  # until it was looked for
        self._has_warned_of_immunity = False
        self.gate = Gate(ports.run)
        self._reader: Reader | None = None
        self._position = 0  # of the settings topic: what is new begins here
        self._stopping = ports.run.event()
        self._reading: Running | None = None

    def start(self) -> None:
        """Begin to read the topic; returns at once."""
        self._reading = self._ports.run.start(self._follow, "halfbridge-settings")

    def stop(self) -> None:
        """Stop reading."""
        self._stopping.set()
        if self._reading is not None:
            self._reading.join(_STOP_S)

    def check_immunity(self, immunity_ms: int) -> None:
        """Warn once if the daemon may discard a message before its first check."""
        known = self._known
        if known is None or self._has_warned_of_immunity:
            return
        if 2 * immunity_ms <= known.transaction_age_ms_max:
            return
        self._has_warned_of_immunity = True
        tell(
            _LOG.warning,
            "a message asks for an immunity of %d ms, and the daemon discards undecided"
            " transactions after %d ms: shorten the immunity to half of that, or raise the"
            " daemon's transaction_age_ms_max",
            immunity_ms,
            known.transaction_age_ms_max,
        )

    def _follow(self) -> None:
        try:
            is_first = True
            while True:
                self._look(is_first=is_first)
                self.gate.looked()
                is_first = False
                if self._stopping.wait(FOLLOW_S):
                    return
        finally:
            self._let_go()

    def _look(self, *, is_first: bool) -> None:
        """Read what is new; what cannot be read leaves all as it is."""
        log = _LOG.info if is_first else _LOG.debug
        told = "the daemon's limits are not known, defaults assumed"
        if self._known is not None:
            told = "the settings topic was not read, what was read before holds"
        try:
            reading = self._read()
        except BridgeError as error:
            self._let_go()
            if not self._stopping.is_set():
                tell(log, "%s: %s", told, error)
            return
        except BaseException:  # noqa: BLE001 (a hint that cannot be read stops nobody)
            self._let_go()
            tell(_LOG.exception, "%s", told)
            return
        if self._known is None:
            self._take(reading.said[-1] if reading.said else None)
        is_new_topic = reading.end < self._position
        if reading.switched is not None or is_new_topic:
            self.gate.take(reading.switched)
        if reading.types or is_new_topic:
            self.gate.take_types(reading.types, is_whole=is_new_topic)
        self._position = reading.end

    def _read(self) -> Reading:
        ports = self._ports
        if self._reader is None:
            properties = {**reader_properties(self._config, ports.clock), **READING}
            self._reader = ports.kafka.reader(properties)
        return read_topic(
            self._reader,
            self._config.names.settings,
            start=self._position,
            stop=self._stopping,
            clock=ports.clock,
        )

    def _let_go(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            self._ports.run.let_go(reader)

    def _take(self, last: Said | None) -> None:
        self._known = DaemonSettings()
        if last is None or (last.settings is None and not last.problem):
            tell(_LOG.info, "the daemon has not said its limits, defaults assumed")
        elif last.settings is None:
            tell(
                _LOG.warning,
                "the daemon's limits cannot be read, defaults assumed (offset %d of %s: %s);"
                " where the daemon is newer than this client, upgrade the client",
                last.offset,
                self._config.names.settings,
                last.problem,
            )
        else:
            self._known = last.settings
            tell(_LOG.debug, "the daemon's limits are %r", last.settings)
            for difference in differences(self._config, last.settings):
                tell(_LOG.warning, "%s", difference)


def differences(config: BridgeConfig, daemon: DaemonSettings) -> list[str]:
    """Return a sentence for each setting in which a client with `config` and the daemon disagree.

    Each sentence says who has to change what. A limit of the daemon that is wider than the client's
    is no disagreement.
    """
    found = []
    for name, consequence in (
        ("transaction_timeout_ms", "until then `late` in receipts is wrong"),
        ("transaction_age_ms_max", _age_consequence(config, daemon)),
    ):
        mine, theirs = getattr(config, name), getattr(daemon, name)
        if mine != theirs:
            found.append(
                f"{name} is {mine} in this client and {theirs} in the daemon: set {name}={theirs}"
                f" (HALFBRIDGE_{name.upper()}) in this client, or change the daemon's; "
                f"{consequence}"
            )
    found += [
        f"{name} is {most} in this client and {getattr(daemon, name)} in the daemon, which does not"
        " deliver what is larger: run client and daemon of the same version"
        for name, most in _WRITTEN_MAX.items()
        if most > getattr(daemon, name)
    ]
    return found


def _age_consequence(config: BridgeConfig, daemon: DaemonSettings) -> str:
    if config.transaction_age_ms_max < daemon.transaction_age_ms_max:
        return (
            f"until then messages with an immunity of more than {config.immunity_ms_max} ms are"
            " refused, which the daemon would take"
        )
    return (
        f"until then messages with an immunity of more than {daemon.transaction_age_ms_max // 2} ms"
        " may be discarded before anybody is asked"
    )

"""Asks where partitions end, by a client that is replaced when it may remember former leaders."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from halfbridge.bridge.client_settings import admin_properties
from halfbridge.kafka.ends import Ends, half_end
from halfbridge.kafka.errors import BridgeError
from halfbridge.kafka.threads import held
from halfbridge.serde.records import NO_OFFSET
from halfbridge.serde.units import MS_PER_S

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halfbridge.bridge.config import BridgeConfig
    from halfbridge.kafka.ports import Admin, Place, Ports

_ASK_S_MIN = 0.1  # a question and its answer take milliseconds; less would fail on a busy broker
_ENDS_S = 10.0  # nobody waits for it


class EndAsker:
    """One client that asks brokers where partitions end, made at the first question. Thread-safe.

    Args:
        config: The producer's settings.
        ports: Make the client.
    """

    def __init__(self, config: BridgeConfig, ports: Ports) -> None:
        self._config = config
        self._ports = ports
        self._now = ports.clock.monotonic
        self._client: Admin | None = None
        self._waker = ports.run.waker()

    def half_end(self, partition: int, *, at_least: int = NO_OFFSET) -> int:
        """Return the last offset of a half partition (high watermark - 1), asked now.

        Args:
            partition: Which.
            at_least: Offset of a half message that is known. A broker that reports an end below it
                does not know yet that it was deposed: another client asks, and its answer is
                returned.

        Raises:
            BridgeError: the broker did not say; try again later.
        """
        topic = self._config.names.half
        limit_s = max(2 * _ASK_S_MIN, self._config.decision_timeout_ms / MS_PER_S)
        deadline = self._now() + limit_s
        client = self._client_but(None)
        with suppress(BridgeError):
            end = half_end(client, topic, partition, timeout_s=limit_s / 2)
            if end >= at_least:
                return end
        # A client remembers a partition's leader for minutes. Metadata from a broker that was just
        # starting (too few partitions) may be wrong.
        client = self._client_but(client)
        left_s = max(_ASK_S_MIN, deadline - self._now())
        return half_end(client, topic, partition, timeout_s=left_s)

    def ask(self, places: Iterable[Place], *, anew: bool) -> Ends:
        """Ask where partitions end; does not wait for the answers.

        Args:
            places: Which.
            anew: Whether a new client asks, because this one may remember former leaders.

        Raises:
            BridgeError, KafkaFailure, RuntimeError: the question cannot be sent; try later.
        """
        return Ends(self._client_but(self._client if anew else None), places, _ENDS_S)

    def hear(self) -> None:
        """Serve the client's reports; call this now and then.

        Questions may be hours apart, and reports would accumulate while brokers are down.
        """
        client = self._client
        if client is not None:
            client.poll(0)

    def close(self) -> None:
        """Let the client go; it is destroyed with its last reference."""
        self._client = None

    def _client_but(self, failed: Admin | None) -> Admin:
        """Return the client, a new one in place of `failed`.

        The old client is destroyed with its last reference: other threads may still use it.
        """
        with held(self._waker):
            client = self._client
            if client is None or client is failed:
                properties = admin_properties(self._config, self._ports.clock)
                client = self._client = self._ports.kafka.admin(properties)
            return client

"""The process of a relay of either kind: its producer, its metrics and its signals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import click

from halfbridge.logs import LevelSwitch

if TYPE_CHECKING:
    from contextlib import ExitStack

    from prometheus_client import CollectorRegistry

    from halfbridge.bridge import TransactionProducer
    from halfbridge.bridge.config import BridgeConfig
    from halfbridge.checker.status import Health
    from halfbridge.sql.fence import Fence


class Service(Protocol):
    """A running relay."""

    def health(self) -> Health:
        """Return the current health."""

    def stop(self) -> None:
        """Make `run` return."""

    def run(self) -> None:
        """Relay until `stop`."""


def started_producer(stack: ExitStack, fence: Fence, config: BridgeConfig) -> TransactionProducer:
    """Return a relay's started producer, with `fence` as its checker; the stack closes it."""
    # Imported here: --help needs neither SQLAlchemy nor the Kafka client.
    from halfbridge.bridge.producer import TransactionProducer
    from halfbridge.sql.local_messages.service import CLOSE_S_MAX

    producer = TransactionProducer(checker=fence.check, config=config)
    stack.callback(producer.close, CLOSE_S_MAX)
    producer.start()
    return producer


def run_until_signal(
    stack: ExitStack,
    service: Service,
    registry: CollectorRegistry,
    values: dict[str, Any],
    *,
    says: str,
) -> None:
    """Run a relay until SIGTERM or Ctrl-C; SIGUSR1 switches its log to debug, and back.

    Args:
        stack: Closes the metrics server.
        service: The relay.
        registry: The relay's metrics.
        values: Values of the command: log_level, metrics_host and metrics_port; without a port no
            metrics.
        says: A line to print at the start.
    """
    from halfbridge.checker.process.http import serve
    from halfbridge.signals import (
        LEVEL_SIGNAL,
        STOP_SIGNALS,
        on_signals,
    )

    level = LevelSwitch(values["log_level"])

    def react(number: int) -> None:
        if number == LEVEL_SIGNAL:
            level.toggle()
        else:
            service.stop()

    host, port = values["metrics_host"], values["metrics_port"]
    if port is not None:
        server = serve(registry, service.health, host=host, port=port)
        stack.callback(server.close)
        click.echo(f"metrics on {host}:{server.port}")
    click.echo(says)
    stack.enter_context(on_signals(react, signals=(*STOP_SIGNALS, LEVEL_SIGNAL)))
    service.run()

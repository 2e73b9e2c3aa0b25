"""`halfbridge broker`: a real Kafka broker on this machine, for experiments."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from halfbridge.cli.options import port_option
from halfbridge.signals import on_signals

if TYPE_CHECKING:
    from halfbridge.testkit.broker import EmbeddedBroker
    from halfbridge.testkit.connect import ConnectWorker

_ALIVE_POLL_S = 0.5  # how late the death of a broker is noticed


@click.group()
def broker() -> None:
    """Run a real Kafka broker on this machine."""


@broker.command()
@port_option("--port", 9092, "Port for clients on 127.0.0.1; 0 takes a free one.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of the data. Without it, a temporary directory that is deleted at the end.",
)
@click.option(
    "--connect",
    is_flag=True,
    help="Run a Kafka Connect worker with Debezium's connectors (PostgreSQL, MySQL,"
    " MariaDB) beside it; its first start fetches 60 MB.",
)
@port_option(
    "--connect-port",
    8083,
    "Port of Kafka Connect's REST interface on 127.0.0.1; 0 takes a free one.",
)
def start(*, port: int, directory: Path | None, connect: bool, connect_port: int) -> int:
    """Run one broker in the foreground until Ctrl-C. The first start fetches its jars."""
    # Imported here: --help needs no broker.
    from halfbridge.testkit.broker import EmbeddedBroker
    from halfbridge.testkit.connect import ConnectWorker

    refuse_taken(port, "--port")
    click.echo("starting Kafka (the first start fetches its jars) ...", err=True)
    with ExitStack() as stack:
        try:
            running = stack.enter_context(EmbeddedBroker(directory=directory, port=port))
            worker = None
            if connect:
                click.echo("starting Kafka Connect ...", err=True)
                worker = ConnectWorker(
                    running.bootstrap_servers,
                    directory=directory and directory / "connect",
                    port=connect_port,
                )
                stack.enter_context(worker)
        except RuntimeError as error:  # the testkit's errors: no Java, no jars, port taken, ...
            raise click.ClickException(str(error)) from error
        _say_and_wait(running, worker)
    return 0


def refuse_taken(port: int, option: str) -> None:
    """Refuse a port in use, so that a later answer on it comes from the broker started here."""
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        raise click.ClickException(
            f"port {port} is not available ({error.strerror}): give another {option}"
        ) from error


def _say_and_wait(running: EmbeddedBroker, worker: ConnectWorker | None) -> None:
    """Print the broker's address; return after a signal. A broker that ends itself is an error."""
    # Handlers are set only now: before the broker runs, Ctrl-C must interrupt the download. They
    # are set before the address is printed, since its reader may send a signal at once.
    stop = threading.Event()
    with on_signals(lambda _number: stop.set()):
        click.echo(running.bootstrap_servers)
        click.echo(
            f"running, data in {running.directory}; Ctrl-C stops it\n"
            f"next: halfbridge topics create --bootstrap-servers {running.bootstrap_servers}",
            err=True,
        )
        if worker is not None:
            click.echo(f"Kafka Connect: {worker.url}, log in {worker.log_path}", err=True)
        while not stop.wait(_ALIVE_POLL_S):
            if running.process_id is None:
                raise click.ClickException(f"the broker ended by itself: see {running.log_path}")
            if worker is not None and worker.process_id is None:
                raise click.ClickException(f"Kafka Connect ended by itself: see {worker.log_path}")

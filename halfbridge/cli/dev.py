"""`halfbridge dev`: a whole installation on this machine, in one terminal."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from halfbridge import environment
from halfbridge.checker.process.slots import default_state_dir
from halfbridge.cli.broker import refuse_taken
from halfbridge.cli.options import log_format_option, port_option, require
from halfbridge.signals import on_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from halfbridge.testkit.broker import EmbeddedBroker
    from halfbridge.testkit.watchdog import Watchdog

HOST = "127.0.0.1"
_POLL_S = 0.2  # how late readiness, or a process that has ended, is seen
_READY_S_MAX = 240.0  # as for the broker: a busy machine may take minutes
_ASK_S_MAX = 5.0  # one question for readiness, before it is asked again
_STOP_S_MAX = 12.0  # the daemon drains within 10 s
# The only directory that --fresh deletes, below the given one.
_DATA = "dev-broker"


@click.command()
@port_option("--port", 9092, "Port of Kafka on 127.0.0.1.", least=1)
@port_option("--web-port", 9465, "Port of the API and the web page on 127.0.0.1.", least=1)
@port_option("--metrics-port", 9464, "Port of the daemon's metrics on 127.0.0.1.", least=1)
@click.option("--topic", "topics", multiple=True, help="A real topic to create. May be repeated.")
@click.option(
    "--producer-group", "-g", "groups", multiple=True, help="A group to create. May be repeated."
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory that keeps the data. [default: $XDG_STATE_HOME/halfbridge]",
)
@click.option("--fresh", is_flag=True, help="Delete the data of earlier runs first.")
@log_format_option
@click.option("--json", "as_json", is_flag=True, help="Print the addresses as one JSON object.")
def dev(**values: Any) -> int:
    """Run Kafka, the internal topics, the daemon and the web page until Ctrl-C.

    Standard output has the addresses once everything is ready; the log is on standard error. Data
    is kept. Other settings of the daemon come from HALFBRIDGE_ variables.
    """
    require("the web server", "starlette", "uvicorn", "jinja2")
    # Imported here: --help needs no broker.
    from halfbridge.testkit.broker import EmbeddedBroker
    from halfbridge.testkit.watchdog import Watchdog

    for option in ("port", "web_port", "metrics_port"):
        refuse_taken(values[option], f"--{option.replace('_', '-')}")
    data = (values["directory"] or default_state_dir(environment.variables())) / _DATA
    if values["fresh"]:
        shutil.rmtree(data, ignore_errors=True)
    data.mkdir(parents=True, exist_ok=True)
    click.echo("starting Kafka (the first start fetches its jars) ...", err=True)
    with ExitStack() as stack:
        try:
            broker = EmbeddedBroker(directory=data, port=values["port"])
            stack.enter_context(broker)
        except RuntimeError as error:  # no Java, no jars, a directory in use
            raise click.ClickException(str(error)) from error
        watchdog = Watchdog(None)
        stack.callback(watchdog.close)
        _create_topics(broker.bootstrap_servers, values)
        _serve(stack, watchdog, broker, values)
    return 0


def _create_topics(servers: str, values: Mapping[str, Any]) -> None:
    groups = [word for group in values["groups"] for word in ("--producer-group", group)]
    _run(["topics", "create", "--bootstrap-servers", servers, *groups])
    for topic in values["topics"]:
        more = ["--type", "transaction", "--partitions", "4", "--bootstrap-servers", servers]
        _run(["topics", "create", topic, *more])


def _run(words: list[str]) -> None:
    """Run another command to its end; its error is the error of this one."""
    done = subprocess.run(  # noqa: S603 (our own interpreter and module)
        _command(*words), check=False, capture_output=True, text=True
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip().removeprefix("halfbridge: ")
        raise click.ClickException(f"{' '.join(words[:3])}: {said}")


def _command(*words: str) -> list[str]:
    return [sys.executable, "-m", "halfbridge", *words]


def _serve(
    stack: ExitStack, watchdog: Watchdog, broker: EmbeddedBroker, values: Mapping[str, Any]
) -> None:
    """Run daemon and page until a signal; a process that ends by itself is an error."""
    metrics = f"http://{HOST}:{values['metrics_port']}"
    page = f"http://{HOST}:{values['web_port']}"
    shared = ["--bootstrap-servers", broker.bootstrap_servers, "--log-format", values["log_format"]]
    # Each is in a session of its own: Ctrl-C reaches this process, which ends them in order.
    environ = {
        k: v for k, v in environment.variables().items() if not k.startswith("HALFBRIDGE_ADMIN_")
    }
    daemon = watchdog.start(
        [_command("checker", "run", "--metrics-port", str(values["metrics_port"]), *shared)],
        env=environ,
    )
    stack.callback(_end, daemon)
    web = watchdog.start(
        [
            _command(
                *("web", "--admin-host", HOST, "--admin-port", str(values["web_port"])),
                *("--metrics-urls", metrics, *shared),
            )
        ],
        env=environ,
        stdout=subprocess.DEVNULL,
    )
    stack.callback(_end, web)
    running = {"the daemon": daemon, "the web page": web}

    def check() -> None:
        for name, process in running.items():
            if process.poll() is not None:
                raise click.ClickException(
                    f"{name} ended by itself, exit status {process.returncode}: see above"
                )
        if broker.process_id is None:
            raise click.ClickException(f"the broker ended by itself: see {broker.log_path}")

    _wait_ready(f"{metrics}/readyz", check)
    _wait_ready(f"{page}/livez", check)
    stop = threading.Event()
    # Set before the addresses are printed: their reader may send a signal at once.
    with on_signals(lambda _number: stop.set()):
        _say(broker, page=page, metrics=metrics, values=values)
        while not stop.wait(_POLL_S):
            check()
        click.echo("stopping the page, the daemon, then Kafka ...", err=True)


def _wait_ready(url: str, check: Callable[[], None]) -> None:
    deadline = time.monotonic() + _READY_S_MAX
    while True:
        try:
            with urllib.request.urlopen(url, timeout=_ASK_S_MAX):  # noqa: S310 (our own http: address)
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            check()
        if time.monotonic() > deadline:
            raise click.ClickException(f"{url} is not ready after {_READY_S_MAX:.0f} s")
        time.sleep(_POLL_S)


def _say(broker: EmbeddedBroker, *, page: str, metrics: str, values: Mapping[str, Any]) -> None:
    servers = broker.bootstrap_servers
    if values["as_json"]:
        body = {"bootstrap_servers": servers, "page": page, "metrics": metrics}
        body["directory"] = str(broker.directory)
        click.echo(json.dumps({**body, "topics": list(values["topics"])}))
        return
    click.echo(f"Kafka   {servers}\npage    {page}\nmetrics {metrics}/metrics")
    click.echo(f"data    {broker.directory} (--fresh deletes it)")
    if not values["topics"]:
        create = "halfbridge topics create orders --type transaction"
        click.echo(f"next    {create} --bootstrap-servers {servers}")
    click.echo(f"next    halfbridge tx list --bootstrap-servers {servers}")
    click.echo("ready; Ctrl-C stops everything")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process in order, by force after `_STOP_S_MAX`."""
    process.terminate()
    try:
        process.wait(_STOP_S_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

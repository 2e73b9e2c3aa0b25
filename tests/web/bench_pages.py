"""What pages take beside a load, and what they cost it: `python -m tests.web.bench_pages`.

Runs `halfbridge bench --rate` in turn without and with a web server beside, whose pages are asked
for one after the other, one each `--pause` seconds: more than a browser that stays open does. Of
each page: how long answers took. Of the load: the latency of its transactions, and the processor
time of its daemon. Of the web server: its processor time as a part of the time of the run.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Any

import click
from typing_extensions import Self

from halfbridge.checker.admin.cluster import Cluster
from halfbridge.serde.topics import TopicNames
from halfbridge.testkit.ports import HOST, free_ports
from tests.kit.http import answer_of
from tests.kit.waiting import until

PAGES = ("/", "/transactions", "/dead-letters", "/groups", "/topics", "/doctor", "/audit-log")
OK = 200
START_S = 60.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """Return the processor time of a process so far, seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


class Visitor:
    """Starts a web server for the bench's installation once that is there, and asks for pages."""

    def __init__(self, servers: str, metrics_port: int, pause_s: float) -> None:
        self._servers, self._metrics_port, self._pause_s = servers, metrics_port, pause_s
        self._before = self._prefixes()
        self._stop = Event()
        self._thread = Thread(target=self._visit)
        self.times_s: dict[str, list[float]] = {page: [] for page in PAGES}
        self.share, self.refused = 0.0, 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the server."""
        self._stop.set()
        self._thread.join()

    def _prefixes(self) -> set[str]:
        half = TopicNames("").half
        there = Cluster(self._servers).topics()
        return {name.removesuffix(half) for name in there if name.endswith(half)}

    def _visit(self) -> None:
        (prefix,) = until(
            "the bench's installation", lambda: self._prefixes() - self._before, within_s=START_S
        )
        (port,) = free_ports(1)
        words = (
            *(sys.executable, "-m", "halfbridge", "web", "--admin-port", str(port)),
            *("--bootstrap-servers", self._servers, "--topic-prefix", prefix),
            *("--metrics-urls", f"http://{HOST}:{self._metrics_port}"),
        )
        url = f"http://{HOST}:{port}"
        with TemporaryDirectory() as directory, (Path(directory) / "log").open("wb") as log:
            server = subprocess.Popen(words, stderr=log)
            try:
                until(
                    "the web server", lambda: answer_of(f"{url}/livez")[0] == OK, within_s=START_S
                )
                self._ask(url, server.pid)
            finally:
                server.terminate()
                server.wait()

    def _ask(self, url: str, pid: int) -> None:
        for page in PAGES:  # the first time, templates are compiled
            answer_of(url + page)
        began, used_s = time.monotonic(), cpu_s(pid)
        while not self._stop.is_set():
            for page in PAGES:
                asked = time.monotonic()
                status, _ = answer_of(url + page)
                if status == OK:
                    self.times_s[page].append(time.monotonic() - asked)
                else:  # at the end of a run its topics are deleted
                    self.refused += 1
                self._stop.wait(self._pause_s)
            self.share = (cpu_s(pid) - used_s) / (time.monotonic() - began)


def bench(servers: str, rate: float, messages: int, metrics_port: int) -> dict[str, Any]:
    """Run the load; return its figures."""
    words = (
        *(sys.executable, "-m", "halfbridge", "bench", "--json", "--bootstrap-servers", servers),
        *("--rate", str(rate), "--messages", str(messages), "--warmup", "4"),
    )
    environ = {**os.environ, "HALFBRIDGE_METRICS_PORT": str(metrics_port)}
    done = subprocess.run(words, env=environ, check=True, stdout=subprocess.PIPE)
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


@click.command()
@click.option("--bootstrap-servers", "servers", required=True)
@click.option("--rate", default=2_000.0, show_default=True)
@click.option("--messages", default=24_000, show_default=True)
@click.option("--turns", default=2, show_default=True)
@click.option("--pause", "pause_s", default=0.5, show_default=True, help="Between two pages.")
def main(servers: str, rate: float, messages: int, turns: int, pause_s: float) -> None:
    """Measure in turn, and print one line a run."""
    for _ in range(turns):
        (port,) = free_ports(1)
        show("without", bench(servers, rate, messages, port))
        (port,) = free_ports(1)
        with Visitor(servers, port, pause_s) as visitor:
            figures = bench(servers, rate, messages, port)
        show("with", figures)
        for page, times_s in visitor.times_s.items():
            if times_s:
                mid, most = median(times_s) * 1000, max(times_s) * 1000
                click.echo(f"  {page:<14} {len(times_s):>3} answers, {mid:.0f} ms, most {most:.0f}")
        click.echo(
            f"  the web server took {visitor.share:.1%} of a core; {visitor.refused} refused"
        )


def show(name: str, figures: dict[str, Any]) -> None:
    """Print the figures of a load."""
    latency, checker = figures["latency_ms"], figures["checker"]
    click.echo(
        f"{name:<8} {figures['transactions_per_s']:.0f}/s, p50 {latency['p50']:.1f} ms,"
        f" p99 {latency['p99']:.1f}, daemon {checker['cpu_s']:.2f} s of processor time"
    )


if __name__ == "__main__":
    main()

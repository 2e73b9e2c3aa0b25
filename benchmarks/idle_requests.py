"""Counts what an idle worker sends to brokers: `python -m benchmarks.idle_requests --help`.

The worker is the shipped one, in this process, on clients that report librdkafka's statistics.
Requests do not depend on how busy the machine is, as processor time does.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import uuid
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakMethod

from halfbridge.bench.run import make_topics, open_brokers
from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.process.service import run_worker
from halfbridge.checker.status import Status
from halfbridge.kafka.adapter import KafkaClients, system_ports
from halfbridge.kafka.admin import delete_groups, delete_topics
from halfbridge.serde.topics import TopicNames

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_REPORT_MS = 1_000  # of the statistics
_SETTLE_S = 20.0  # a start asks more than a worker that is idle
_PAIRS = 4
_US_PER_S = 1e6
_POLLS = 1_000  # a consumer takes one report with each


class Sent(NamedTuple):
    """What a client had sent at a time of its own clock, by API."""

    at_us: int
    requests: Counter[str]


class CountedKafka(KafkaClients):
    """Makes clients that report what they send.

    Attributes:
        reports: Client -> its reports, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reports: dict[str, list[Sent]] = {}
        self._polls: list[WeakMethod[Callable[[float], object]]] = []

    def reader(self, properties: Mapping[str, object]) -> Any:
        return self._polled(super().reader(self._reporting("reader", properties)))

    def member(self, properties: Mapping[str, Any], **keywords: Any) -> Any:
        return super().member(self._reporting("member of the group", properties), **keywords)

    def writer(self, properties: Mapping[str, object]) -> Any:
        return self._polled(super().writer(self._reporting("writer", properties)))

    def transactional_writer(self, properties: Mapping[str, Any], **keywords: Any) -> Any:
        reporting = self._reporting("transactional writer", properties)
        return self._polled(super().transactional_writer(reporting, **keywords))

    def admin(self, properties: Mapping[str, object]) -> Any:
        return self._polled(super().admin(self._reporting("admin client", properties)))

    def drain(self) -> None:
        """Take the reports of clients that an idle worker does not poll."""
        polls = (each() for each in self._polls)
        for poll in filter(None, polls):
            with suppress(RuntimeError):  # the worker has closed it
                for _ in range(_POLLS):
                    poll(0)

    def _polled(self, port: Any) -> Any:
        self._polls.append(WeakMethod(port.poll))  # the worker drops clients to end them
        return port

    def _reporting(self, kind: str, properties: Mapping[str, object]) -> dict[str, Any]:
        name = f"{kind} {1 + sum(each.startswith(kind) for each in self.reports)}"
        self.reports[name] = []
        note = partial(self._note, self.reports[name])
        return {**properties, "statistics.interval.ms": _REPORT_MS, "stats_cb": note}

    @staticmethod
    def _note(reports: list[Sent], text: str) -> None:
        said = json.loads(text)
        requests: Counter[str] = Counter()
        for broker in said["brokers"].values():
            requests.update(broker["req"])
        reports.append(Sent(said["ts"], requests))


def per_second(reports: Sequence[Sent], since_us: float) -> dict[str, float] | None:
    """Return requests a second by API from a time on; None: the client ended before. Pure."""
    kept = [each for each in reports if each.at_us >= since_us]
    if len(kept) < 2:  # noqa: PLR2004  (a rate needs two)
        return None
    first, last = kept[0], kept[-1]
    seconds = (last.at_us - first.at_us) / _US_PER_S
    return {api: round(n / seconds, 2) for api, n in (last.requests - first.requests).items()}


def measure(servers: str, kafka: Mapping[str, str], seconds: float) -> dict[str, Any]:
    """Return what the clients of a worker on topics of its own send when it is idle."""
    prefix = f"idle-{uuid.uuid4().hex[:8]}."
    names = TopicNames(prefix)
    make_topics(servers, names, (), pairs=_PAIRS, partitions=1, producer_group="idle")
    config = CheckerConfig(bootstrap_servers=servers, topic_prefix=prefix, kafka=kafka)
    counted, stop = CountedKafka(), Event()
    ports = replace(system_ports(), kafka=counted)
    serve = partial(run_worker, config, slot="idle", stop=stop, status=Status(), ports=ports)
    worker = Thread(target=serve)
    worker.start()
    try:
        time.sleep(_SETTLE_S)
        before, began = wakeups(), time.monotonic()
        time.sleep(seconds)
        woken = (wakeups() - before) / (time.monotonic() - began)
        threads = len(list(_TASKS.iterdir()))
        counted.drain()
    finally:
        stop.set()
        worker.join()
        delete_groups(servers, [names.daemon_group])
        delete_topics(servers, lambda name: name.startswith(prefix))
    rates = {name: per_second(each, began * _US_PER_S) for name, each in counted.reports.items()}
    clients = {name: rate for name, rate in rates.items() if rate is not None}
    total = round(sum(sum(rate.values()) for rate in clients.values()), 2)
    return {"clients": clients, "all": total, "threads": threads, "wakeups_per_s": round(woken, 1)}


_TASKS = Path("/proc/self/task")


def wakeups() -> int:
    """Return how often threads of this process have gone to sleep so far."""
    found = 0
    for task in _TASKS.iterdir():
        with suppress(OSError):  # the thread has ended
            lines = (task / "status").read_text("ascii").splitlines()
            found += sum(int(line.split()[1]) for line in lines if line.startswith("voluntary"))
    return found


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.idle_requests",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--bootstrap-servers", default="", help="without it a broker is started")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument(
        "--try",
        dest="tried",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a Kafka property, which a further worker has alone. May be repeated.",
    )
    options = parser.parse_args(arguments)
    with open_brokers(options.bootstrap_servers, say=_say) as brokers:
        for text in ("", *options.tried):
            kafka = dict([text.split("=", 1)]) if text else {}
            found = measure(brokers.bootstrap_servers, kafka, options.seconds)
            _say(f"{text or 'defaults'}: {json.dumps(found)}")
    return 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Draws the dashboard out of a real Prometheus, where no Grafana can be had to look at it.

    python -m tests.deploy.draw dashboard.svg [SECONDS]

A daemon with two workers on a Kafka of its own, producers that commit, roll back, crash and fall
silent, the shipped scrape configuration and rules; then the query of every panel over that time, in
the place and the unit that the dashboard gives it. For eyes: that queries have data, tests tell.
"""

import json
import random
import sys
import tempfile
import threading
import time
from html import escape
from pathlib import Path
from typing import Any

from halfbridge import Message, MessageView, Resolution, TransactionProducer
from halfbridge.testkit.ports import HOST
from halfbridge.testkit.stack import HalfbridgeStack
from tests.deploy.promql import JOB, panels
from tests.deploy.test_monitoring import ask, prometheus

SECONDS = 60.0
THREADS = 3
STEP_S = 2
RATE_WINDOW = "15s"
CELL_X, CELL_Y = 50, 30  # pixels of one cell of Grafana's grid, which is 24 wide
MARGIN = 26
COLOURS = ("#3274d9", "#e0752d", "#37872d", "#c4162a", "#8f3bb8", "#b58900", "#0a8f8f", "#666666")
SETTINGS = {"transaction_timeout_ms": 2000, "check_interval_ms": 3000, "check_count_max": 3}


class Load:
    """Threads that place orders, some of which nobody decides until a check comes."""

    def __init__(self, producer: TransactionProducer, topics: tuple[str, str]) -> None:
        self._producer, self._topics = producer, topics
        self.committed: set[str] = set()

    def run(self, seconds: float) -> None:
        """Place orders for a while, on several threads."""
        end = time.monotonic() + seconds
        threads = [threading.Thread(target=self._place, args=(n, end)) for n in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _place(self, number: int, end: float) -> None:
        draw = random.Random(number)
        orders, parcels = self._topics
        while time.monotonic() < end:
            chance = draw.random()
            tx = self._producer.begin()
            tx.send(Message(orders, key=b"%d" % draw.randrange(50), value=draw.randbytes(500)))
            if chance < 0.2:
                tx.send(Message(parcels, value=b"a parcel"))
            if chance < 0.1:
                self.committed.add(tx.id)  # only a check will tell
            elif chance < 0.25:
                tx.rollback()
            elif chance > 0.3:
                tx.commit()
            time.sleep(0.01)  # the load: at most 100 transactions a second of each thread


def record(seconds: float) -> dict[str, list[tuple[str, list[Any]]]]:
    """Return panel's title -> legend and series of each of its queries, after a time of load."""
    committed: set[str] = set()

    def check(view: MessageView) -> Resolution:
        return Resolution.COMMIT if view.transaction_id in committed else Resolution.UNKNOWN

    with (
        tempfile.TemporaryDirectory() as directory,
        HalfbridgeStack(workers=2, partitions=4, **SETTINGS) as stack,
        prometheus(Path(directory), f"{HOST}:{stack.config.metrics_port}") as address,
    ):
        topics = stack.create_topic("orders", partitions=4), stack.create_topic("parcels")
        began = time.clock_gettime(time.CLOCK_REALTIME)  # Prometheus wants the time of day
        with stack.producer("silent-service", checker=check) as silent:
            for _ in range(30):
                silent.begin().send(Message(topics[0], value=b"nobody decides this"))
        with stack.producer("order-service", checker=check) as producer:
            load = Load(producer, topics)
            load.committed = committed
            load.run(seconds)
        ended = time.clock_gettime(time.CLOCK_REALTIME)
        return {
            panel["title"]: [_series(address, target, began, ended) for target in panel["targets"]]
            for panel in panels()
        }


def _series(
    address: str, target: dict[str, Any], began: float, ended: float
) -> tuple[str, list[Any]]:
    query = target["expr"].replace("$__rate_interval", RATE_WINDOW).replace("$job", JOB)
    span = {"start": str(began), "end": str(ended), "step": str(STEP_S)}
    return target["legendFormat"], ask(address, "query_range", query=query, **span)["result"]


def draw(data: dict[str, list[tuple[str, list[Any]]]]) -> str:
    """Return the dashboard as SVG."""
    height = max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in panels()) * CELL_Y
    size = f'width="{24 * CELL_X}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for panel in panels():
        place = panel["gridPos"]
        left, top = place["x"] * CELL_X + 4, place["y"] * CELL_Y + 4
        width, tall = place["w"] * CELL_X - 8, place["h"] * CELL_Y - 8
        unit = panel["fieldConfig"]["defaults"]["unit"]
        lines = [
            (_legend(legend, series["metric"]), series["values"])
            for legend, found in data[panel["title"]]
            for series in found
        ]
        show = _curves if panel["type"] == "timeseries" else _number
        parts.append(
            f'<g transform="translate({left},{top})"><rect width="{width}" height="{tall}"'
            f' fill="none" stroke="#ccc"/><text x="6" y="15" font-weight="bold">'
            f"{escape(panel['title'])} [{unit}]</text>{show(lines, width, tall)}</g>"
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _legend(template: str, labels: dict[str, str]) -> str:
    for name, value in labels.items():
        template = template.replace("{{" + name + "}}", value)
    return template


def _number(lines: list[tuple[str, list[Any]]], width: int, tall: int) -> str:
    texts = [f"{float(values[-1][1]):.3g} {escape(name)}" for name, values in lines]
    return "".join(
        f'<text x="{width // 2}" y="{tall // 2 + 10 + 22 * n}" font-size="18"'
        f' text-anchor="middle">{text}</text>'
        for n, text in enumerate(texts)
    )


def _curves(lines: list[tuple[str, list[Any]]], width: int, tall: int) -> str:
    points = [(at, float(value)) for _, values in lines for at, value in values]
    known = [(at, value) for at, value in points if value == value]  # noqa: PLR0124 (not NaN)
    if not known:
        return f'<text x="{width // 2}" y="{tall // 2}" text-anchor="middle">no data</text>'
    first, last = min(at for at, _ in known), max(at for at, _ in known)
    most = max(value for _, value in known) or 1.0
    parts = [f'<text x="6" y="{MARGIN + 4}" fill="#666">{most:.3g}</text>']
    for number, (name, values) in enumerate(lines):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(
            f"{8 + (at - first) / max(last - first, 1) * (width - 16):.1f},"
            f"{tall - MARGIN - float(value) / most * (tall - 2.4 * MARGIN):.1f}"
            for at, value in values
            if value != "NaN"
        )
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}"/>')
        parts.append(
            f'<text x="{8 + number % 3 * (width // 3)}" y="{tall - 14 + number // 3 * 10}"'
            f' font-size="9" fill="{colour}">{escape(name)}</text>'
        )
    return "".join(parts)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else SECONDS
    recorded = record(seconds)
    target.with_suffix(".json").write_text(json.dumps(recorded), "utf-8")
    target.write_text(draw(recorded), "utf-8")

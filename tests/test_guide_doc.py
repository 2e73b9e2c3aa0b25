"""docs/how-to/monitor.md and the README's picture, as a reader has them."""

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from prometheus_client import REGISTRY

from halfbridge import Message, Resolution
from halfbridge.testkit.memory import MemoryStack

DOCS = Path(__file__).parents[1] / "docs"


def test_the_clients_counters_are_exported_as_shown() -> None:
    """The listing registers a collector of what a real producer counts."""
    page = (DOCS / "how-to" / "monitor.md").read_text("utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    with MemoryStack() as stack:
        topic = stack.create_topic("orders")

        def checker(_: object) -> Resolution:
            raise LookupError

        with stack.producer("order-service", checker=checker) as producer:
            known: dict[str, Any] = {"producer": producer}
            exec(block, known)
            producer.begin().send(Message(topic))
            stack.advance(seconds=10)
            values = {
                what: REGISTRY.get_sample_value(
                    "halfbridge_client_checks_total",
                    {"producer_group": "order-service", "outcome": what},
                )
                for what in ("received", "answered", "failed", "refused", "foreign")
            }
    assert values == {"received": 1, "answered": 0, "failed": 1, "refused": 0, "foreign": 0}


def test_the_page_of_payloads_sends_what_it_shows() -> None:
    """Its listings run in order, by a registry in memory; the event's time is read from headers."""
    page = (DOCS / "how-to" / "payloads.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    with MemoryStack() as stack:
        stack.create_topic("orders")
        with stack.producer("shop", checker=lambda _: Resolution.COMMIT) as producer:
            known: dict[str, Any] = {"producer": producer}
            for block in blocks:
                exec(block.replace("http://registry:8081", "mock://page"), known)
            stack.wait_until_decided()
        plain, avro, event = stack.read_committed("orders")
    line = b'"lines":[{"article":"hat","price":"9.90"}]'
    assert line in (plain.value or b"")
    assert plain.value == event.value
    assert (avro.key, (avro.value or b"")[:1]) == (b"customer-42", b"\0")
    placed_ms = int(known["order"]["placed"].timestamp() * 1000)
    assert known["event_time_ms"](event.headers) == placed_ms
    assert known["event_time_ms"](plain.headers) != placed_ms


def test_the_picture_reads_on_light_and_dark_pages() -> None:
    """It is one file with a text for those who do not see it, and brings nothing from elsewhere."""
    text = (DOCS / "flow.svg").read_text("utf-8")
    root = ET.fromstring(text)
    names = [each.tag.rpartition("}")[2] for each in root]
    assert names[:3] == ["title", "desc", "style"]
    assert "@media (prefers-color-scheme: dark)" in text
    assert re.findall(r"(?:href|src|url)\W+(?:http|//)", text) == []
    assert "docs/flow.svg" in (DOCS.parent / "README.md").read_text("utf-8")

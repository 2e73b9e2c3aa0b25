"""The picture of a suite."""

from xml.etree import ElementTree as ET

import pytest

from benchmarks.picture import picture, place_of
from tests.benchmarks.figures import suite_json

NAMESPACE = "{http://www.w3.org/2000/svg}"


def test_it_shows_latencies_throughput_and_origin() -> None:
    """A curve for each rate and its plain records, a bar for each closed loop, the command."""
    root = ET.fromstring(picture(suite_json("rate-200", "threads-32", "pipelined")))
    texts = [each.text for each in root.iter(f"{NAMESPACE}text")]
    curves = [
        each
        for each in root.iter(f"{NAMESPACE}polyline")
        if each.get("class") == "line" and each.get("points").count(",") == 1
    ]

    assert {"halfbridge, 200/s", "plain records, 200/s", "threads-32", "pipelined"} <= {*texts}
    assert len(list(root.iter(f"{NAMESPACE}rect"))) == 2
    assert len(curves) == 2  # of one percentile each
    assert any("python -m benchmarks.suite" in text for text in texts)
    assert any("a <processor>" in text for text in texts)


def test_nothing_to_draw_is_no_error() -> None:
    """A suite of one row that has neither latency nor throughput is still a document."""
    found = suite_json("idle")
    del found["rows"]["undecided"], found["rows"]["rebuild"]
    assert ET.fromstring(picture(found)).tag == f"{NAMESPACE}svg"


def test_the_tail_has_as_much_room_as_the_body() -> None:
    """From p90 to p99 is as far as from p99 to p99.9; nothing is outside of the panel."""
    assert place_of(99) - place_of(90) == pytest.approx(place_of(99.9) - place_of(99))
    assert (place_of(0), place_of(100)) == (0, 1)

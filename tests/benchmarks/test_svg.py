"""The writer of pictures."""

from xml.etree import ElementTree as ET

import pytest

from benchmarks.picture import picture, place_of
from benchmarks.svg import Panel, document, label, legend, stroke
from tests.benchmarks.figures import suite_json

NAMESPACE = "{http://www.w3.org/2000/svg}"


def _parsed(*parts: str) -> ET.Element:
    return ET.fromstring(document(100, 50, parts, title="a < b"))


def test_texts_are_escaped() -> None:
    """A machine's name may hold anything; the document stays well-formed."""
    root = _parsed(label(1, 2, 'x & "<y>"'))

    assert root.findtext(f"{NAMESPACE}title") == "a < b"
    assert root.findtext(f"{NAMESPACE}text") == 'x & "<y>"'
    assert root.get("viewBox") == "0 0 100 50"


def test_places_become_pixels() -> None:
    """0 is left and at the bottom; a picture's pixels are counted from above."""
    panel = Panel(10, 20, 100, 50)

    assert (panel.at(0, 0), panel.at(1, 1)) == ((10, 70), (110, 20))
    (line,) = _parsed(panel.curve([(0, 0), (0.5, 1)], "red")).iter(f"{NAMESPACE}polyline")
    assert (line.get("points"), line.get("stroke")) == ("10.0,70.0 60.0,20.0", "red")


def test_grids_and_bars() -> None:
    """Each tick has a line and a text; a bar is as long as its part."""
    panel = Panel(0, 0, 100, 60)
    across = _parsed(*panel.grid([(0, "low"), (1, "high")]))
    upright = _parsed(*panel.grid([(0.5, "mid")], vertical=True))
    bar = _parsed(panel.bar(1, 2, 0.25, "blue", "7/s", name="pipelined"))

    assert [each.text for each in across.iter(f"{NAMESPACE}text")] == ["low", "high"]
    assert upright.find(f"{NAMESPACE}polyline").get("points") == "50.0,0.0 50.0,60.0"
    assert bar.find(f"{NAMESPACE}rect").get("width") == "25.0"
    assert [each.text for each in bar.iter(f"{NAMESPACE}text")] == ["pipelined", "7/s"]


def test_a_legend_has_a_line_for_each_name() -> None:
    """In the colour of its curve."""
    root = _parsed(*legend(0, 0, ["a", "b"], ("red", "blue").__getitem__), stroke([], kind="x"))
    colours = [each.get("stroke") for each in root.iter(f"{NAMESPACE}polyline")]
    assert colours == ["red", "blue", None]


# --- the picture of a suite ----------------------------------------------------------------


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

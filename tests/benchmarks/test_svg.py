"""The writer of pictures."""

from xml.etree import ElementTree as ET

from benchmarks.svg import Panel, document, label, legend, stroke

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

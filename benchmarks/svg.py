"""A small writer of pictures: a panel with axes, lines and bars, as SVG. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

COLOURS = ("#0969da", "#cf222e", "#1a7f37", "#9a6700", "#8250df")
_STYLE = """
    text { fill: #1f2328; font: 12px ui-sans-serif, system-ui, sans-serif }
    .title { font-weight: 600; font-size: 14px } .dim { fill: #57606a }
    .grid { stroke: #d1d9e0; stroke-width: 1 } .line { fill: none; stroke-width: 2 }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3 } .dim { fill: #9198a1 } .grid { stroke: #3d444d }
    }
"""


@dataclass(frozen=True, slots=True)
class Panel:
    """A place for a picture, in pixels: its left upper corner, its width and its height."""

    x: float
    y: float
    width: float
    height: float

    def title(self, text: str) -> str:
        """Return a title above the panel."""
        return label(self.x, self.y - 12, text, kind="title")

    def grid(self, ticks: Sequence[tuple[float, str]], *, vertical: bool = False) -> Iterable[str]:
        """Yield lines across the panel with a text each.

        Args:
            ticks: Place from 0 (bottom, left) to 1 (top, right), and text.
            vertical: Lines from top to bottom, with the text below.
        """
        for place, text in ticks:
            if vertical:
                x = self.x + place * self.width
                yield stroke([(x, self.y), (x, self.y + self.height)], kind="grid")
                yield label(x, self.y + self.height + 16, text, anchor="middle", kind="dim")
            else:
                y = self.y + (1 - place) * self.height
                yield stroke([(self.x, y), (self.x + self.width, y)], kind="grid")
                yield label(self.x - 6, y + 4, text, anchor="end", kind="dim")

    def at(self, across: float, up: float) -> tuple[float, float]:
        """Return the pixel of a place, both from 0 to 1."""
        return self.x + across * self.width, self.y + (1 - up) * self.height

    def curve(self, places: Sequence[tuple[float, float]], colour: str) -> str:
        """Return a line through places from 0 to 1."""
        return stroke([self.at(*place) for place in places], kind="line", colour=colour)

    def bar(self, number: int, of: int, part: float, colour: str, text: str, *, name: str) -> str:
        """Return a horizontal bar with its name above it and a text at its end.

        Args:
            number: Place of the bar, from 0 at the top.
            of: Number of bars.
            part: Its length, from 0 to 1.
            colour: Its colour.
            text: At its end.
            name: Above it.
        """
        step = self.height / of
        y, thick, width = self.y + number * step + 16, min(18.0, step - 20), part * self.width
        return (
            label(self.x, y - 4, name)
            + f'<rect x="{self.x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{thick:.1f}"'
            f' fill="{colour}"/>' + label(self.x + width + 6, y + thick - 4, text, kind="dim")
        )


def document(width: int, height: int, parts: Iterable[str], *, title: str) -> str:
    """Return a whole picture, readable on light and on dark pages."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n"
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def label(x: float, y: float, text: str, *, anchor: str = "start", kind: str = "") -> str:
    """Return a text."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">{escape(text)}</text>'
    )


def stroke(pixels: Sequence[tuple[float, float]], *, kind: str, colour: str = "") -> str:
    """Return a line through pixels."""
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in pixels)
    paint = f' stroke="{colour}"' if colour else ""
    return f'<polyline points="{points}" class="{kind}"{paint} fill="none"/>'


def legend(x: float, y: float, names: Sequence[str], colour: Callable[[int], str]) -> Iterable[str]:
    """Yield a line for each name, one below the other, in its colour."""
    for number, name in enumerate(names):
        at = y + 18 * number
        yield stroke([(x, at - 4), (x + 18, at - 4)], kind="line", colour=colour(number))
        yield label(x + 24, at, name)

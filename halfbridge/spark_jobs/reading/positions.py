"""Where a read of topics begins and ends: offsets, or publish times."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

import click

_AGO = re.compile(r"-(\d{1,6})([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_EARLIEST = -2  # what Spark's JSON says for it


@dataclass(frozen=True, slots=True)
class Position:
    """One end of a range: exactly one of the two is given.

    Attributes:
        offsets: `earliest`, `latest`, or JSON with an offset for every partition of every topic,
            as Spark takes it: `{"orders": {"0": 17, "1": -2}}` (-2 earliest, -1 latest).
        timestamp_ms: A publish time; the range holds what was published at or after it (start),
            or before it (end).
    """

    offsets: str = ""
    timestamp_ms: int | None = None

    def starting(self) -> dict[str, str]:
        """Return the options of Spark's source for a read that starts here."""
        if self.timestamp_ms is None:
            return {"startingOffsets": self.offsets}
        # Without the strategy a partition that has nothing so new fails the read.
        return {
            "startingTimestamp": str(self.timestamp_ms),
            "startingOffsetsByTimestampStrategy": "latest",
        }

    def ending(self) -> dict[str, str]:
        """Return the options of Spark's source for a read that ends here."""
        if self.timestamp_ms is None:
            return {"endingOffsets": self.offsets}
        return {"endingTimestamp": str(self.timestamp_ms)}

    def __str__(self) -> str:
        return self.offsets or f"{self.timestamp_ms} ms"


EARLIEST = Position("earliest")
LATEST = Position("latest")


def parse_position(text: str) -> Position:
    """Return the position that `text` names.

    `earliest`, `latest`, offsets as JSON, milliseconds since 1970, an ISO 8601 time (UTC where it
    names no zone), or `-24h` for so long ago.

    Raises:
        ValueError: it is none of these.
    """
    text = text.strip()
    if text in (EARLIEST.offsets, LATEST.offsets):
        return Position(text)
    if text.startswith("{"):
        return Position(_offsets(text))
    if text.isascii() and text.isdigit():
        return Position(timestamp_ms=int(text))
    return Position(timestamp_ms=round(_time(text).timestamp() * 1000))


def _time(text: str) -> datetime:
    if ago := _AGO.fullmatch(text):
        try:
            return datetime.now(timezone.utc) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        except OverflowError:
            raise ValueError(f"{text!r} is before the year 1") from None
    try:
        time = datetime.fromisoformat(re.sub("Z$", "+00:00", text))  # Python 3.10 knows no Z
    except ValueError:
        raise ValueError(
            f"{text!r} is no position: give earliest, latest, a time such as 2026-11-01T12:00Z"
            " or -24h, or offsets as JSON"
        ) from None
    return time if time.tzinfo else time.replace(tzinfo=timezone.utc)


def _offsets(text: str) -> str:
    wrong = ValueError(f"{text} is not like {{'orders': {{'0': 17, '1': -2}}}} (as JSON)")
    try:
        given = json.loads(text)
    except ValueError:
        raise wrong from None
    partitions: list[tuple[str, Any]] = []
    for topic in given.values():
        if not isinstance(topic, dict) or not topic:
            raise wrong
        partitions += topic.items()
    for number, offset in partitions:
        if not number.isdigit() or not isinstance(offset, int) or offset < _EARLIEST:
            raise wrong
    return json.dumps(given, sort_keys=True)


def _position(_context: click.Context, _option: click.Parameter, given: str) -> Position:
    try:
        return parse_position(given)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


# Keyword `start`, of type `Position`.
from_option = click.option(
    "--from",
    "start",
    default=EARLIEST.offsets,
    show_default=True,
    callback=_position,
    metavar="POSITION",
    help="Where to begin: earliest, latest, a publish time (2026-11-01T12:00Z, or -24h), or"
    " offsets as JSON.",
)
# Keyword `end`, of type `Position`.
to_option = click.option(
    "--to",
    "end",
    default=LATEST.offsets,
    show_default=True,
    callback=_position,
    metavar="POSITION",
    help="Where to end, likewise; a publish time is not part of the range itself.",
)

"""The files of a stream's checkpoint, as Spark keeps them, and the rows of a plan."""

from __future__ import annotations

import json
from typing import NamedTuple

QUERY_ID = "5f0c7a52-feed"
KEYS = (b"a", b"b", None, b"c")
# Of the rows of a plan every so many-th goes to the second topic.
SIDE_EVERY = 5
# Real topics of the query, and their partitions.
FEED_TOPICS = {"feed": 2, "side": 1}


class Row(NamedTuple):
    """A row of the query. Its value begins with its number in the source."""

    number: int
    topic: str
    key: bytes | None


class Files:
    """`offsets/N` and `commits/N`, of one checkpoint, as `checkpoint.Files`.

    Attributes:
        replaced: Batches whose plan was written over by another one.
    """

    def __init__(self) -> None:
        self._contents: dict[str, bytes] = {}
        self.replaced: set[int] = set()

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None if it is missing."""
        return self._contents.get(name)

    def exists(self, name: str) -> bool:
        """Tell whether there is such a file."""
        return name in self._contents

    def write(self, name: str, content: bytes) -> None:
        """Write a file, over what was there."""
        self._contents[name] = content

    def write_plan(self, batch: int, end: int, now_ms: int) -> None:
        """Write the plan of a batch that ends with the source's offset `end`."""
        if self.exists(f"offsets/{batch}") and self.end_of(batch) != end:
            self.replaced.add(batch)
        settings = json.dumps({"batchTimestampMs": now_ms}).encode()
        self.write(f"offsets/{batch}", b"v1\n%s\n%d" % (settings, end))

    @property
    def newest(self) -> int:
        """The last batch that was planned; -1: none."""
        plans = (name for name in self._contents if name.startswith("offsets/"))
        return max((int(name.partition("/")[2]) for name in plans), default=-1)

    def end_of(self, batch: int) -> int:
        """Return the offset of the source at which a batch ends; 0 in front of the first one."""
        plan = self.read(f"offsets/{batch}")
        return 0 if plan is None else int(plan.split(b"\n")[-1])


def rows_of_plan(begin: int, end: int) -> list[Row]:
    """Return the rows between two offsets of the source."""
    return [
        Row(number, "side" if number % SIDE_EVERY == SIDE_EVERY - 1 else "feed", KEYS[number % 4])
        for number in range(begin, end)
    ]

"""The progress of a partition, as it is committed with its offsets.

H, O, R, T and P of one partition pair:

    half p:  0 ........ H ............. P ....... R
                        |               |         copies written, not yet read back, end here
                        |               half records below P have had their effect
                        nothing undecided below H (committed offset of half p)
    op p:    0 ... T ........ O
                   |          next op to apply (committed offset of op p)
                   decisions about transactions with a record at or above H begin here, and
                   recent ones (halfbridge.checker.core.entries)

H and O are the committed offsets themselves; R, T and P travel, with H once more, in the
metadata of op p's offset: `v1;H;R;T;P;W;<crc>`, or `v1;H;R;T;P;W;D;<crc>` while deliveries are
deferred. W is written as 0: releases before 0.2 kept a budget of waiting there. D lists the op
offsets of the deferred COMMITs (halfbridge.checker.core.deferred): the first one, then the
differences, for example `1200,3,17` for 1200, 1203 and 1220.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_VERSION = "v1"
_SHOWN_CHARS_MAX = 80  # of what cannot be read: a line
# Fields before there was W, with W, and with D.
_FIELD_COUNTS = (6, 7, 8)
_DEFERRED_AT = 6  # D, the seventh field; the checksum is the last one


class ProgressError(ValueError):
    """Committed progress cannot be trusted: the partition stops until an operator acts."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Committed progress of one partition pair.

    Attributes:
        half: H, committed low half offset.
        op: O, next op offset to apply.
        rebuild_to: R, half offset up to which a rebuild reads before it applies anything.
        ops_from: T, lowest op offset that a rebuild needs.
        position: P, half records below it had their effect (dead letters of unreadable and late
            ones); P <= R.
        deferred: D, ascending offsets of ops below O that committed a transaction whose delivery
            waits for a real topic. A rebuild defers them again.
    """

    half: int
    op: int
    rebuild_to: int
    ops_from: int
    position: int
    deferred: tuple[int, ...] = ()

    def has_applied(self, op: int) -> bool:
        """Tell whether the op at this offset has had its effect: below O, and not deferred."""
        return op < self.op and op not in self.deferred

    def metadata(self) -> str:
        """Return the text committed with op p's offset: ASCII, below Kafka's 4,096 limit.

        The checksum covers O too, to find out a tool that moves the offset and keeps the text.
        """
        text = f"{_VERSION};{self.half};{self.rebuild_to};{self.ops_from};{self.position}"
        text += ";0"
        if self.deferred:
            text += f";{deferred_text(self.deferred)}"
        return f"{text};{_checksum(text, self.op)}"


START = Progress(half=0, op=0, rebuild_to=0, ops_from=0, position=0)


def parse_progress(half_offset: int, op_offset: int, metadata: str | None) -> Progress:
    """Return the progress that was committed; negative offsets: there is none.

    Raises:
        ProgressError: offset or text missing, damaged, of a newer version, or contradicting each
            other; an operator runs `halfbridge checker init`. O itself may be wrong then, and
            guessing delivers twice or loses.
    """
    if half_offset < 0 or op_offset < 0:
        raise ProgressError("no committed offset: expired, deleted or never initialised")
    if not metadata:
        raise ProgressError("committed offset without metadata: offsets were reset by a tool")
    parts = metadata.split(";")
    if parts[0] != _VERSION:
        raise ProgressError(f"offset metadata of unknown version {parts[0][:_SHOWN_CHARS_MAX]!r}")
    is_whole = len(parts) in _FIELD_COUNTS
    if not is_whole or parts[-1] != _checksum(metadata.rpartition(";")[0], op_offset):
        raise ProgressError(
            f"offset metadata is damaged or not of this offset: {metadata[:_SHOWN_CHARS_MAX]!r}"
        )
    half, rebuild_to, ops_from, position = (int(part) for part in parts[1:5])
    steps = parts[_DEFERRED_AT].split(",") if len(parts) > _DEFERRED_AT + 1 else ()
    deferred = tuple(accumulate(map(int, steps)))
    if half != half_offset:
        raise ProgressError(f"half offset {half_offset} differs from H={half} in the metadata")
    if not half <= position <= rebuild_to or ops_from > op_offset:
        raise ProgressError(f"offset metadata contradicts itself: {metadata!r}, O={op_offset}")
    if deferred and not (
        ops_from <= deferred[0]
        and deferred[-1] < op_offset
        and all(low < high for low, high in pairwise(deferred))
    ):
        raise ProgressError(f"offset metadata contradicts itself: {metadata!r}, O={op_offset}")
    return Progress(half, op_offset, rebuild_to, ops_from, position, deferred)


def deferred_text(offsets: Sequence[int]) -> str:
    """Return ascending offsets as text: the first one, then the differences."""
    steps = (high - low for low, high in pairwise(offsets))
    return ",".join(map(str, (*offsets[:1], *steps)))


def _checksum(text: str, op_offset: int) -> str:
    return f"{zlib.crc32(f'{op_offset}|{text}'.encode()):08x}"

"""How far a partition has come, in the words that are committed beside its offsets.

H, O, R, T and P of one partition pair:

    half p:  0 ........ H ............. P ....... R
                        |               |         copies written, not yet read back, end here
                        |               half records below P have had their effect
                        nothing undecided below H (committed offset of half p)
    op p:    0 ... T ........ O
                   |          next op to apply (committed offset of op p)
                   decisions about transactions with a record at or above H begin here, and
                   recent ones (halfbridge.checker.core.forget)

H and O are the committed offsets themselves; R, T and P travel, with H once more, in the
metadata of op p's offset: `v1;H;R;T;P;W;<crc>`. W is when the pair's budget of waiting is full
again (halfbridge.checker.loop.patience).
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

_VERSION = "v1"
_FIELDS = 7
# Before there was W, no budget had been spent.
_FIELDS_BEFORE_W = 6


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
        waits_full_ms: W, partition time; 0 before any wait.
    """

    half: int
    op: int
    rebuild_to: int
    ops_from: int
    position: int
    waits_full_ms: int = 0

    def metadata(self) -> str:
        """Return the text committed with op p's offset: ASCII, far below Kafka's 4,096 limit.

        The checksum covers O too, so that a tool that moves the offset and keeps the text is
        found out.
        """
        text = f"{_VERSION};{self.half};{self.rebuild_to};{self.ops_from};{self.position}"
        text += f";{self.waits_full_ms}"
        return f"{text};{_checksum(text, self.op)}"


START = Progress(half=0, op=0, rebuild_to=0, ops_from=0, position=0)


def parse_progress(half_offset: int, op_offset: int, metadata: str | None) -> Progress:
    """Return the progress that was committed.

    Args:
        half_offset: Committed offset of half p; negative when there is none.
        op_offset: Committed offset of op p; negative when there is none.
        metadata: Text committed with op p's offset.

    Raises:
        ProgressError: offset or text missing, damaged, of a newer version, or contradicting
            each other. O itself may be wrong then, and guessing delivers twice or loses.
    """
    if half_offset < 0 or op_offset < 0:
        raise ProgressError("no committed offset: expired, deleted or never initialised")
    if not metadata:
        raise ProgressError("committed offset without metadata: offsets were reset by a tool")
    parts = metadata.split(";")
    if parts[0] != _VERSION:
        raise ProgressError(f"offset metadata of unknown version {parts[0][:16]!r}")
    is_whole = len(parts) in (_FIELDS_BEFORE_W, _FIELDS)
    if not is_whole or parts[-1] != _checksum(metadata.rpartition(";")[0], op_offset):
        raise ProgressError(f"offset metadata is damaged or not of this offset: {metadata[:80]!r}")
    half, rebuild_to, ops_from, position, *rest = (int(part) for part in parts[1:-1])
    waits_full_ms = rest[0] if rest else 0
    if half != half_offset:
        raise ProgressError(f"half offset {half_offset} differs from H={half} in the metadata")
    if not half <= position <= rebuild_to or ops_from > op_offset:
        raise ProgressError(f"offset metadata contradicts itself: {metadata!r}, O={op_offset}")
    return Progress(half, op_offset, rebuild_to, ops_from, position, waits_full_ms)


def _checksum(text: str, op_offset: int) -> str:
    return f"{zlib.crc32(f'{op_offset}|{text}'.encode()):08x}"

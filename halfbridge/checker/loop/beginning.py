"""Decides where a pair begins: compares the committed offsets with the logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.checker.core.rebuild import BeyondEndError, check_against_log
from halfbridge.checker.loop.failures import InputLostError
from halfbridge.serde.progress import Progress, ProgressError, parse_progress

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfbridge.kafka.ports import Committed

# How long progress beyond a log's end may be the mistake of a deposed leader. A broker that was
# frozen learns within a heartbeat (2 s) that other brokers lead its partitions.
BEYOND_END_S = 10.0


def where_to_begin(
    number: int,
    topics: tuple[str, str],
    committed: Mapping[tuple[str, int], Committed],
    ranges: Mapping[tuple[str, int], tuple[int, int] | InputLostError],
) -> Progress | ProgressError | InputLostError:
    """Return where a pair begins, or why that is not known.

    Args:
        number: The pair's partition number.
        topics: Half and op topic.
        committed: (topic, partition) -> committed offset and metadata.
        ranges: (topic, partition) -> log start and end, or why its broker did not answer.
    """
    half, op = ((topic, number) for topic in topics)
    if half not in committed or op not in committed:
        return ProgressError(
            "half and op partition of this number are not on one worker: the topics have"
            " different partition counts; `halfbridge topics create --grow` makes them equal"
        )
    at_op = committed[op]
    try:
        progress = parse_progress(committed[half].offset, at_op.offset, at_op.metadata)
        half_range, op_range = ranges[half], ranges[op]
        if isinstance(half_range, InputLostError):
            return half_range
        if isinstance(op_range, InputLostError):
            return op_range
        return check_against_log(progress, half_range, op_range)
    except ProgressError as error:
        return error


class Doubts:
    """Pairs whose progress lies beyond a log's end, which is trusted only after BEYOND_END_S."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}

    def check(self, found: Mapping[int, Progress | ProgressError], now: float) -> None:
        """Take what was found about all pairs to serve.

        Args:
            found: Partition number -> where the pair begins, or why it is stopped.
            now: Monotonic seconds.

        Raises:
            InputLostError: the finding is too new; all partitions are asked about again.
        """
        self._since = {
            number: self._since.get(number, now)
            for number, progress in found.items()
            if isinstance(progress, BeyondEndError)
        }
        for number, since in self._since.items():
            if now - since < BEYOND_END_S:
                raise InputLostError(f"partition {number}: {found[number]}; asked again")

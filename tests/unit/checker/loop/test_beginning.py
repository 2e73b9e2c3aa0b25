"""Progress beyond a log's end may be a deposed leader's word, and is believed after a while."""

from __future__ import annotations

import pytest

from halfbridge.checker.core.rebuild import BeyondEndError
from halfbridge.checker.loop.assignment import BEYOND_END_S, EndsInDoubt
from halfbridge.checker.loop.failures import InputLostError
from halfbridge.serde.progress import START


def test_an_end_is_believed_when_brokers_have_told_it_for_a_while() -> None:
    """Each pair has its own wait, which begins anew once its progress lies in the log."""
    doubts, beyond = EndsInDoubt(), BeyondEndError("beyond the end")
    for now in (0.0, BEYOND_END_S / 2):
        with pytest.raises(InputLostError, match="partition 1: beyond the end"):
            doubts.check({0: START, 1: beyond}, now)
    doubts.check({0: START, 1: beyond}, BEYOND_END_S)
    doubts.check({0: START, 1: START}, BEYOND_END_S)
    with pytest.raises(InputLostError):
        doubts.check({0: START, 1: beyond}, 2 * BEYOND_END_S)

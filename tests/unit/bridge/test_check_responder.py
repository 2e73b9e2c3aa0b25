"""What a checker is shown of a request."""

from __future__ import annotations

from bridge.check_responder import _shown, _view
from serde.headers import CHECK, CONTEXT, HALF
from serde.records import CheckRequest

REQUEST = CheckRequest(
    transaction_id="a1",
    sent_timestamp=1,
    half_offset=2,
    half_partition=0,
    resume_count=0,
    message_index=0,
    producer_group="g",
    real_topic="orders",
    real_partition=-1,
    check_number=1,
    attempt=1,
    born_timestamp=3,
)


class _Record:
    def key(self) -> bytes:
        """Return the key."""
        return b"k"

    def value(self) -> bytes:
        """Return the value."""
        return b"v"


class _Unspeakable(BaseException):
    def __repr__(self) -> str:
        raise SystemExit


def test_an_answer_that_cannot_be_shown_is_told_all_the_same() -> None:
    """The reason of an uncounted answer holds what a checker raised or returned, in words."""
    assert _shown(ValueError("database down")) == "ValueError('database down')"
    assert _shown(_Unspeakable()) == "a _Unspeakable, whose repr raised SystemExit"


def test_the_context_is_shown_apart_from_the_headers() -> None:
    """A checker finds what its sender left for it; internal headers are no headers."""
    headers = [("mine", b"1"), (CONTEXT, b"left"), (HALF, b"x"), (CHECK, b"y")]
    view = _view(REQUEST, _Record(), headers)
    assert (view.context, view.headers) == (b"left", (("mine", b"1"),))
    assert _view(REQUEST, _Record(), headers[:1]).context is None

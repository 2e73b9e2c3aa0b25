"""What a record takes in a log, and what is known of what topics take."""

from __future__ import annotations

import pytest

from halfbridge.checker.loop.publish import (
    LEARNED_MAX,
    LEARNED_MS,
    Sizes,
    bytes_alone,
    bytes_at_most,
)

KIB = 1024


@pytest.mark.parametrize("key", [None, b"", b"k" * 63, b"k" * 64])
@pytest.mark.parametrize("value_bytes", [0, 63, 64, 8191, 8192, 1_048_576])
@pytest.mark.parametrize("header_count", [0, 1, 64])
def test_the_estimate_is_never_too_small(
    key: bytes | None, value_bytes: int, header_count: int
) -> None:
    """It is too large by some 20 bytes and a few a header, whatever the parts are."""
    value = b"v" * value_bytes
    headers = [("näme", b"x" * 70), *[("n", None)] * (header_count - 1)] if header_count else []
    exact = bytes_alone(key, value, headers)
    assert exact <= bytes_at_most(key, value, headers) <= exact + 30 + 6 * header_count


def test_a_topic_of_which_nothing_is_known_takes_all() -> None:
    """It is tried: only a broker can say."""
    sizes = Sizes(lambda _topic: None)
    assert sizes.limit("t") is None
    assert sizes.fits("t", 1 << 40)


def test_what_was_learned_counts_where_it_is_less() -> None:
    """A topic's limit may have been lowered since brokers were asked, or they do not say."""
    sizes = Sizes({"a": 1_000, "b": 10}.get)
    for topic in ("a", "b", "c"):
        sizes.learn(topic, 100, 0)
    assert [sizes.limit(topic) for topic in ("a", "b", "c", "d")] == [100, 10, 100, None]
    assert (sizes.fits("a", 100), sizes.fits("a", 101)) == (True, False)


def test_what_was_learned_is_forgotten() -> None:
    """The limit may have been raised: after ten minutes a larger record is tried again."""
    sizes = Sizes(lambda _topic: None)
    sizes.learn("t", 100, 5)
    sizes.refresh(LEARNED_MS + 4)
    assert sizes.limit("t") == 100
    sizes.refresh(LEARNED_MS + 5)
    assert sizes.limit("t") is None


def test_what_is_configured_is_looked_at_anew() -> None:
    """A limit that is asked for once a record is kept until the next refresh, and no longer."""
    configured = {"t": 1}
    sizes = Sizes(configured.get)
    assert sizes.limit("t") == 1
    configured["t"] = 2
    assert sizes.limit("t") == 1
    sizes.refresh(0)
    assert sizes.limit("t") == 2


def test_names_of_topics_do_not_pile_up() -> None:
    """Names come from half messages: of so many the one learned first is forgotten."""
    sizes = Sizes(lambda _topic: None)
    for number in range(LEARNED_MAX + 1):
        sizes.learn(str(number), KIB, 0)
    assert sizes.limit("0") is None
    assert sizes.limit("1") == sizes.limit(str(LEARNED_MAX)) == KIB

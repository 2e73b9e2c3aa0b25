"""How large a row is as a record; test_sink_rows.py holds it against the brokers' own count."""

from __future__ import annotations

import pytest

from halfbridge.serde.headers import Headers
from halfbridge.spark_jobs.sink.rows import (
    ANY_BYTES,
    FRAME_BYTES_MAX,
    RealTopic,
    delivered_bytes,
)

ORDERS = RealTopic(1_000, is_compacted=False)


@pytest.mark.parametrize("length", [0, 1, 63, 64, 8_191, 8_192, 1 << 20])
@pytest.mark.parametrize("key", [None, b"", b"k" * 64])
@pytest.mark.parametrize("headers", [[], [("n", None)] * 70, [("n" * 64, b""), ("n", b"x" * 64)]])
def test_a_rows_size_has_a_bound(length: int, key: bytes | None, headers: Headers) -> None:
    """The one that the loop over all rows knows: twice the headers, one more each, and a frame."""
    twice = 2 * sum(len(name) + len(value or b"") for name, value in headers)
    bound = len(key or b"") + length + twice + len(headers) + FRAME_BYTES_MAX
    assert length < delivered_bytes(("orders", -1, key, b"v" * length, headers)) <= bound


def test_a_row_that_does_not_fit_is_told_what_to_do() -> None:
    """With its size and the topic's."""
    assert ORDERS.refusal(("orders", -1, None, b"v" * 700, [])) == ""
    assert "a row is 1174 bytes" in ORDERS.refusal(("orders", -1, None, b"v" * 1_000, []))


def test_where_settings_may_not_be_read_all_fits() -> None:
    """No more can be told of it."""
    unknown = RealTopic(ANY_BYTES, is_compacted=False)
    assert unknown.refusal(("orders", -1, None, b"v" * (1 << 20), [])) == ""


def test_a_compacted_topic_takes_tombstones() -> None:
    """A key it needs, a value it does not."""
    compacted = RealTopic(1_000, is_compacted=True)
    assert compacted.refusal(("orders", -1, b"", None, [])) == ""
    assert "without a key" in compacted.refusal(("orders", -1, None, b"v", []))

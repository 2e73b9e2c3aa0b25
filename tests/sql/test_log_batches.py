"""How many inserts one message transaction takes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from halfbridge.bridge import Message
from halfbridge.sql.log_subscription.batches import cut

MAX, BYTES = 5, 100
MESSAGE = st.builds(lambda size: Message("t", value=bytes(size)), st.integers(0, 120))
READ = st.lists(st.tuples(MESSAGE, st.booleans()), max_size=12)


def _cut(read: list[tuple[Message, bool]]) -> int:
    messages, ends = [each for each, _ in read], [end for _, end in read]
    return cut(messages, ends, messages_max=MAX, bytes_max=BYTES)


def _fits(read: list[tuple[Message, bool]]) -> bool:
    return len(read) <= MAX and (
        len(read) <= 1 or sum(each.body_bytes for each, _ in read) <= BYTES
    )


@given(READ)
def test_a_batch_fits_and_parts_what_does_not_only(read: list[tuple[Message, bool]]) -> None:
    """It is within the limits, and ends between database transactions where it can."""
    count = _cut(read)
    assert _fits(read[:count])
    wholes = [number + 1 for number, (_, end) in enumerate(read) if end]
    fitting = [number for number in wholes if _fits(read[:number])]
    if fitting:
        assert count == max(fitting)
    elif count:  # not even the first database transaction fits: as much as does
        assert not _fits(read[: count + 1]) or count == MAX


@given(READ)
def test_nothing_is_cut_while_a_transaction_may_still_end(
    read: list[tuple[Message, bool]],
) -> None:
    """Only part of a database transaction, and room for more: wait."""
    if _cut(read) == 0:
        assert len(read) < MAX
        assert _fits(read)
        assert not any(end for _, end in read)

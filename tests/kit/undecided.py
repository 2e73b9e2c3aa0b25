"""An undecided transaction with nothing special about it, as `records` has records."""

from halfbridge.checker.admin.transactions.waits import PREPARED, Undecided, Wait

AN_UNDECIDED = Undecided(
    id="id",
    resume_count=0,
    producer_group="group",
    state=PREPARED,
    age_ms=5,
    first_append_ms=1,
    born_ms=1,
    checks_asked=None,
    checks_answered=0,
    next_check_at_ms=None,
    messages=1,
    bytes=2,
    real_topic="orders",
    real_partition=None,
    partition=3,
    offset=4,
    last_offset=4,
    wait=Wait.NOT_DUE,
    why="why",
)

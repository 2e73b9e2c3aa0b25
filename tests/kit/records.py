"""One record of each kind with nothing special about it: `A_HALF._replace(real_topic="orders")`.

A test names the fields that it is about, and no others.
"""

from halfbridge.serde.manifest import BatchManifest, ManifestKind
from halfbridge.serde.records import (
    COUNT_UNKNOWN,
    DEFAULT_IMMUNITY,
    NO_OFFSET,
    NO_TIMESTAMP,
    PARTITION_BY_KEY,
    CheckRequest,
    DeadLetter,
    DeadReason,
    HalfMetadata,
    Op,
    OpKind,
    OpSource,
)

BORN_MS = 1_700_000_000_000
GROUP = "orders"

# An original, not a copy; of one message, whose partition its key decides.
A_HALF = HalfMetadata(
    transaction_id="0" * 32,
    born_timestamp=BORN_MS,
    resume_count=0,
    message_index=0,
    producer_group=GROUP,
    real_topic="real",
    real_partition=PARTITION_BY_KEY,
    check_times=0,
    immunity_ms=DEFAULT_IMMUNITY,
    first_append_timestamp=NO_TIMESTAMP,
    origin_offset=NO_OFFSET,
)
# A producer's COMMIT that does not say how many messages there are.
AN_OP = Op(
    transaction_id="0" * 32,
    timestamp=BORN_MS,
    half_offset=0,
    resume_count=0,
    producer_group=GROUP,
    kind=OpKind.COMMIT,
    message_count=COUNT_UNKNOWN,
    check_number=0,
    source=OpSource.PRODUCER,
    actor="someone",
    reason="",
)
# The first request of the first check.
A_REQUEST = CheckRequest(
    transaction_id="0" * 32,
    sent_timestamp=BORN_MS,
    half_offset=0,
    half_partition=0,
    resume_count=0,
    message_index=0,
    producer_group=GROUP,
    real_topic="real",
    real_partition=PARTITION_BY_KEY,
    check_number=1,
    attempt=1,
    born_timestamp=BORN_MS,
)
# Of an unknown half record, discarded by its count of checks.
A_LETTER = DeadLetter(
    reason=DeadReason.CHECK_TIMES,
    detail="",
    check_times=0,
    decided_timestamp=NO_TIMESTAMP,
    op_offset=NO_OFFSET,
    source_topic="half",
    source_partition=0,
    source_offset=NO_OFFSET,
)
# Of a batch without attempts.
A_MANIFEST = BatchManifest(
    app_id="app",
    batch_id=0,
    kind=ManifestKind.COMMIT,
    searched_from=0,
    first_append_timestamp=0,
    age_ms_max=1_000,
    row_count=1,
    content_hash="",
    query_id="",
    plan_hash="",
    refused_count=0,
    dead_letter_offsets=(),
    dead_letter_topic_id="",
    timestamp=0,
    producer_group="g",
    actor="",
    reason="",
    attempts=(),
)

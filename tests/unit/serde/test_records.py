"""Wire records, made with names."""

from halfbridge.serde.errors import DecodeError, SerdeError, UnknownSchemaError
from halfbridge.serde.records import HalfMetadata, Op, OpKind, OpSource, new_half, new_op


def test_every_name_of_a_half_is_in_its_place() -> None:
    """`new_half` is the class with all names given, whichever they are."""
    values = {name: f"<{name}>" for name in HalfMetadata._fields}
    assert new_half(**values) == HalfMetadata(**values)
    assert type(new_half(**values)) is HalfMetadata


def test_every_name_of_an_op_is_in_its_place() -> None:
    """`new_op` is the class with all names given, whichever they are."""
    values = {name: f"<{name}>" for name in Op._fields}
    assert new_op(**values) == Op(**values)
    assert type(new_op(**values)) is Op


def test_an_original_says_what_only_copies_change() -> None:
    """Counts are 0 and what a copy fills in is -1, as `schemas/half_metadata.v1.avsc` says."""
    half = new_half(transaction_id="t", born_timestamp=1, producer_group="g", real_topic="r")
    assert (half.resume_count, half.message_index, half.check_times) == (0, 0, 0)
    assert (half.real_partition, half.immunity_ms) == (-1, -1)
    assert (half.first_append_timestamp, half.origin_offset) == (-1, -1)
    op = new_op(
        transaction_id="t",
        timestamp=1,
        half_offset=2,
        producer_group="g",
        kind=OpKind.COMMIT,
        message_count=1,
        source=OpSource.PRODUCER,
        actor="h:1",
    )
    assert (op.resume_count, op.check_number, op.reason, op.age_ms) == (0, 0, "", 0)


# --- errors of the wire format -------------------------------------------------------------
def test_errors_keep_the_bytes_and_the_reason() -> None:
    """Each error has the bytes that were read, and says who must act."""
    error = UnknownSchemaError("no such schema", b"\1", "ab")
    assert (error.reason, error.data, error.fingerprint) == ("no such schema", b"\1", "ab")
    assert isinstance(error, DecodeError)
    assert isinstance(error, SerdeError)
    assert isinstance(error, ValueError)

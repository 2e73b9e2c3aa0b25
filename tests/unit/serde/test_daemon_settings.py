"""The record of the daemon's limits: golden bytes, and what a reader refuses."""

from __future__ import annotations

import io
import json

import fastavro
import pytest

from halfbridge.serde.avro import HEADER_BYTES, MARKER, schema_fingerprint, schema_text
from halfbridge.serde.errors import DecodeError, UnknownSchemaError
from halfbridge.serde.records import DaemonSettings
from halfbridge.serde.settings_topic import (
    SETTINGS_BYTES_MAX,
    decode_daemon_settings,
    encode_daemon_settings,
)

SETTINGS_V1 = DaemonSettings(
    worker="host-0",
    timestamp=1_700_000_000_123,
    transaction_timeout_ms=5_000,
    check_interval_ms=20_000,
    check_count_max=10,
    transaction_age_ms_max=86_400_000,
    metadata_bytes_max=4_096,
    op_bytes_max=4_096,
    transaction_messages_max=1_000,
    transaction_bytes_max=8_388_608,
    further={"answers_max": 7},
)
# Never changed: what was written once must be readable for ever.
GOLDEN = (
    "c3014c88d8d6e41639fa0c686f73742d30f6a1abfef962904ec0b8021480f0b25280408040d00f80808008021661"
    "6e73776572735f6d61780e00"
)


def test_the_bytes_do_not_change() -> None:
    """What is written and what is read stays the same within a schema version."""
    assert encode_daemon_settings(SETTINGS_V1).hex() == GOLDEN
    assert decode_daemon_settings(bytes.fromhex(GOLDEN)) == SETTINGS_V1


def test_the_schema_has_the_records_fields() -> None:
    """Any Avro library reads them under these names."""
    schema = json.loads(schema_text("daemon_settings.v1"))
    assert [field["name"] for field in schema["fields"]] == list(SETTINGS_V1._fields)
    body = io.BytesIO(bytes.fromhex(GOLDEN)[HEADER_BYTES:])
    row = fastavro.schemaless_reader(body, fastavro.parse_schema(schema), None)
    assert row == SETTINGS_V1._asdict()


def test_defaults_survive_the_wire() -> None:
    """A daemon with default settings writes what a reader assumes without a record."""
    assert decode_daemon_settings(encode_daemon_settings(DaemonSettings())) == DaemonSettings()


def test_limits_are_all_but_who_and_when() -> None:
    """With the further ones among them, which cannot hide one that version 1 knows."""
    limits = SETTINGS_V1.limits()
    assert limits["answers_max"] == 7
    assert limits["check_count_max"] == 10
    assert not limits.keys() & {"worker", "timestamp", "further"}
    assert limits == SETTINGS_V1._replace(worker="other-1", timestamp=5).limits()
    forged = SETTINGS_V1._replace(further={"check_count_max": 99})
    assert forged.limits()["check_count_max"] == 10


def test_a_newer_schema_is_told_from_damage() -> None:
    """Its reader must upgrade; nobody wrote anything wrong."""
    schema = json.loads(schema_text("daemon_settings.v1"))
    schema["fields"].append({"name": "motto", "type": "string", "default": ""})
    parsed = fastavro.parse_schema(schema)
    body = io.BytesIO()
    fastavro.schemaless_writer(body, parsed, {**SETTINGS_V1._asdict(), "motto": "festina lente"})
    with pytest.raises(UnknownSchemaError):
        decode_daemon_settings(MARKER + schema_fingerprint(parsed) + body.getvalue())


@pytest.mark.parametrize("length", range(len(GOLDEN) // 2))
def test_truncated_bytes_are_told(length: int) -> None:
    """Cut off anywhere, the bytes are refused."""
    with pytest.raises(DecodeError):
        decode_daemon_settings(bytes.fromhex(GOLDEN)[:length])


def test_a_record_that_is_too_long_is_not_read() -> None:
    """However right its beginning is."""
    names = {f"limit-{number:04}": 1 for number in range(2_000)}
    value = encode_daemon_settings(SETTINGS_V1._replace(further=names))
    assert len(value) > SETTINGS_BYTES_MAX
    with pytest.raises(DecodeError, match=f"more than {SETTINGS_BYTES_MAX}"):
        decode_daemon_settings(value)


@pytest.mark.parametrize("name", [*DaemonSettings().limits(), "further"])
def test_a_limit_below_1_is_no_limit(name: str) -> None:
    """Nobody may be told that an age of -1 ms is too long."""
    value: object = {"later": 0} if name == "further" else 0
    with pytest.raises(DecodeError, match="is 0, less than 1"):
        decode_daemon_settings(encode_daemon_settings(SETTINGS_V1._replace(**{name: value})))

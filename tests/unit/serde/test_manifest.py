"""The nested record of the Spark sink: golden bytes, and told when broken."""

import io

import fastavro
import pytest

from halfbridge.serde.avro import HEADER_BYTES
from halfbridge.serde.errors import DecodeError, SerdeError
from halfbridge.serde.manifest import (
    BATCH_MANIFEST,
    BatchManifest,
    ManifestAttempt,
    ManifestKind,
    ManifestTransaction,
)

ID = "0199f0c0a5c87a0b8f3e2d1c0b9a8877"
MANIFEST = BatchManifest(
    app_id="orders",
    batch_id=17,
    kind=ManifestKind.COMMIT,
    searched_from=41,
    first_append_timestamp=1_700_000_000_456,
    age_ms_max=86_400_000,
    row_count=3,
    content_hash="00" * 15 + "ff",
    query_id="f117c46c-c849-4aac-860a-537877b2f388",
    plan_hash="5e" * 32,
    refused_count=2,
    dead_letter_offsets=(0, 300),
    dead_letter_topic_id="kdBCsXeNQL2yK7Kj9PTVwA",
    timestamp=1_700_000_001_123,
    producer_group="spark-orders",
    actor="pod-7",
    reason="",
    attempts=(
        ManifestAttempt(
            "ab" * 16, (ManifestTransaction(ID, 3, 2, 41), ManifestTransaction(ID[::-1], 0, 1, 7))
        ),
        ManifestAttempt("cd" * 16, ()),
    ),
)
# Never changed: what was written once must be readable for ever.
GOLDEN = (
    "c30142a1691a1ffa38d00c6f726465727322005290a7abfef96280f0b252064030303030303030303030303030"
    "303030303030303030303030303030303066664866313137633436632d633834392d346161632d383630612d35"
    "333738373762326633383880013565356535653565356535653565356535653565356535653565356535653565"
    "3565356535653565356535653565356535653565356535653565356535653565040400d804002c6b6442437358"
    "654e514c32794b374b6a395054567741c6b1abfef96218737061726b2d6f72646572730a706f642d3700044061"
    "626162616261626162616261626162616261626162616261626162616261620440303139396630633061356338"
    "376130623866336532643163306239613838373706045240373738386139623063316432653366386230613738"
    "633561306330663939313000020e00406364636463646364636463646364636463646364636463646364636463"
    "6463640000"
)


# Read, and no longer written: what a later version added is not known of them.
MANIFEST_V2 = MANIFEST._replace(dead_letter_topic_id="")
GOLDEN_V2 = (
    "c30130776e3aa2f038e20c6f726465727322005290a7abfef96280f0b252064030303030303030303030303030"
    "303030303030303030303030303030303066664866313137633436632d633834392d346161632d383630612d35"
    "333738373762326633383880013565356535653565356535653565356535653565356535653565356535653565"
    "3565356535653565356535653565356535653565356535653565356535653565040400d80400c6b1abfef96218"
    "737061726b2d6f72646572730a706f642d37000440616261626162616261626162616261626162616261626162"
    "616261626162616204403031393966306330613563383761306238663365326431633062396138383737060452"
    "40373738386139623063316432653366386230613738633561306330663939313000020e004063646364636463"
    "646364636463646364636463646364636463646364636463640000"
)
MANIFEST_V1 = MANIFEST_V2._replace(
    query_id="", plan_hash="", refused_count=0, dead_letter_offsets=()
)
GOLDEN_V1 = (
    "c30150fc0c2b72f2f00f0c6f726465727322005290a7abfef96280f0b252064030303030303030303030303030"
    "30303030303030303030303030303030306666c6b1abfef96218737061726b2d6f72646572730a706f642d3700"
    "044061626162616261626162616261626162616261626162616261626162616261620440303139396630633061"
    "356338376130623866336532643163306239613838373706045240373738386139623063316432653366386230"
    "613738633561306330663939313000020e00406364636463646364636463646364636463646364636463646364"
    "6364636463640000"
)


@pytest.mark.parametrize(
    ("golden", "manifest"),
    [(GOLDEN_V2, MANIFEST_V2), (GOLDEN_V1, MANIFEST_V1)],
    ids=["version 2", "version 1"],
)
def test_the_versions_before_are_read(golden: str, manifest: BatchManifest) -> None:
    """A query that was upgraded finds the batches that it had published."""
    data = bytes.fromhex(golden)
    assert BATCH_MANIFEST.decode(data) == manifest
    assert BATCH_MANIFEST.decode_head(data) == manifest._replace(attempts=())


def test_the_bytes_do_not_change() -> None:
    """What is written and what is read stays the same within a schema version."""
    assert BATCH_MANIFEST.encode(MANIFEST).hex() == GOLDEN
    assert BATCH_MANIFEST.decode(bytes.fromhex(GOLDEN)) == MANIFEST


def test_a_head_is_all_but_the_attempts() -> None:
    """Also where these are cut off: they are not looked at."""
    head = MANIFEST._replace(attempts=())
    data = bytes.fromhex(GOLDEN)
    assert BATCH_MANIFEST.decode_head(data) == head
    assert BATCH_MANIFEST.decode_head(data[:-40]) == head
    for broken in (b"", data[:9], data[:40], b"\xc3\x01" + bytes(40)):
        with pytest.raises(SerdeError):
            BATCH_MANIFEST.decode_head(broken)


def test_any_avro_library_reads_it() -> None:
    """Nested records come out under the names that the schema gives them."""
    body = io.BytesIO(bytes.fromhex(GOLDEN)[HEADER_BYTES:])
    row = fastavro.schemaless_reader(body, BATCH_MANIFEST.schema, None)
    assert list(row) == list(MANIFEST._fields)
    assert row["attempts"][0]["transactions"][1]["half_offset"] == 7


def test_truncated_bytes_are_told() -> None:
    """Cut off anywhere, the bytes are refused and kept."""
    whole = bytes.fromhex(GOLDEN)
    for length in range(len(whole)):
        with pytest.raises(DecodeError) as caught:
            BATCH_MANIFEST.decode(whole[:length])
        assert caught.value.data == whole[:length]

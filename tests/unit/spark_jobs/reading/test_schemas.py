"""Schemas as the command line names them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from halfbridge.spark_jobs.reading.schemas import load_schema

SCHEMA = json.dumps({"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]})


def test_a_file_is_known_by_its_fingerprint_or_by_the_id_given(tmp_path: Path) -> None:
    """White space and order of attributes do not matter to a fingerprint."""
    (tmp_path / "a.avsc").write_text(SCHEMA)
    (tmp_path / "b.avsc").write_text(json.dumps(json.loads(SCHEMA), indent=4))
    first, second = (load_schema(str(tmp_path / name)) for name in ("a.avsc", "b.avsc"))
    assert first.name == second.name
    assert first.name.startswith("avro:")
    assert load_schema(f"17={tmp_path}/a.avsc").name == "confluent:17"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "No such file"),
        ("{", "no Avro schema"),
        ('{"type": "record", "name": "R"}', "no schema of a record"),
        ('{"type": "record", "fields": []}', "no Avro schema"),
        ('"long"', "no schema of a record"),
    ],
)
def test_what_is_no_schema(tmp_path: Path, text: str | None, reason: str) -> None:
    """The error names the file."""
    path = tmp_path / "x.avsc"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ValueError, match=reason) as caught:
        load_schema(str(path))
    assert str(path) in str(caught.value)


def test_an_id_has_32_bits(tmp_path: Path) -> None:
    """A larger one is a slip of the finger, not an id."""
    (tmp_path / "a.avsc").write_text(SCHEMA)
    with pytest.raises(ValueError, match="32 bits"):
        load_schema(f"4294967296={tmp_path}/a.avsc")

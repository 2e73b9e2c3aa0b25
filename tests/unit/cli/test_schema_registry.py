"""Keys and values that were written with a schema registry, as JSON for operators."""

import json
from collections.abc import Iterator

import click
import pytest

from halfbridge.cli.schema_registry import PayloadTexts, echo_payload
from halfbridge.testkit.ports import HOST
from tests.kit.schema_registry import FAILS, Registry, avro, registry_of, written

pytestmark = pytest.mark.process

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "shirts", "type": "int"}]}
SCHEMAS = {
    7: {"schema": json.dumps(ORDER)},
    8: {"schema": "{}", "schemaType": "JSON"},
}


@pytest.fixture
def server() -> Iterator[Registry]:
    with registry_of(SCHEMAS) as made:
        yield made


def test_avro_and_json_are_decoded_and_a_schema_is_asked_for_once(server: Registry) -> None:
    """With the user and the password of the URL, which its path does not show."""
    texts = PayloadTexts(server.url("ada:p%40ss@") + "/")
    assert texts.decoded(written(7, avro(ORDER, shirts=2))).text == '{"shirts": 2}'
    assert texts.decoded(written(7, avro(ORDER, shirts=3))).text == '{"shirts": 3}'
    assert texts.decoded(written(8, b'{"a": [1]}')).text == '{"a": [1]}'
    basic = "Basic YWRhOnBAc3M="
    assert server.asked == [("/schemas/ids/7", basic), ("/schemas/ids/8", basic)]


@pytest.mark.parametrize("data", [None, b"", b"text that has no zero in front", written(11, b"x")])
def test_what_no_schema_fits_is_left_as_it_is(server: Registry, data: bytes | None) -> None:
    """Other bytes, and a number that the registry does not know: nothing is printed of them."""
    texts = PayloadTexts(server.url())
    assert texts.decoded(data) == (None, None)


def test_damaged_bytes_are_left_as_they_are(server: Registry) -> None:
    """Too short for their schema, which is named."""
    texts = PayloadTexts(server.url())
    assert texts.decoded(written(7, b"")).text is None
    assert texts.decoded(written(8, b"{")).text is None
    assert str(texts.decoded(written(8, b"{")).why_not).startswith("schema 8: ")


def test_bytes_are_shown_with_the_reason_below(
    server: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the column of the value; what is decoded has no such line."""
    texts = PayloadTexts(server.url())
    echo_payload("  value ", written(8, b'{"a": 1}'), texts)
    echo_payload("  value ", written(8, b"{"), texts)
    decoded, left, why = capsys.readouterr().out.splitlines()
    assert decoded == '  value {"a": 1}'
    assert left.startswith("  value ")
    assert "{" in left
    assert why.startswith("        not decoded: schema 8: ")


def test_a_registry_that_fails_is_an_error(server: Registry) -> None:
    """In one line, without the password."""
    with pytest.raises(click.ClickException, match="answers 500"):
        PayloadTexts(server.url("ada:secret@")).decoded(written(FAILS, b""))
    with pytest.raises(click.ClickException, match="does not answer") as nobody:
        PayloadTexts(f"http://ada:secret@{HOST}:1").decoded(written(7, b""))
    assert "secret" not in str(nobody.value.message)
    with pytest.raises(click.ClickException, match="wanted http://HOST:PORT"):
        PayloadTexts("file:///etc/passwd")

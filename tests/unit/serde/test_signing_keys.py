"""Key files: what is allowed in them, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from halfbridge.serde.errors import KeyFileError
from halfbridge.serde.signing_keys import NEVER_MS, Algorithm, Role, key_ring, load_key_file
from tests.kit.signing import INSTALLATION, a_key, a_table, secret, write_key_file

PRIVATE = "nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A="  # RFC 8032, test 1
PUBLIC = "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="


def test_a_file_is_read(tmp_path: Path) -> None:
    """The fields of the file, with defaults for those that it does not have."""
    ed = a_key("daemon", algorithm="ed25519", secret="", private=PRIVATE, public=PUBLIC)
    demands = [{"groups": ["a", "b"], "from_ms": 5, "fresh_ms": 60_000}]
    path = write_key_file(tmp_path / "keys.toml", a_table(a_key("client"), ed, demands=demands))
    ring = load_key_file(path)
    assert ring.installation == INSTALLATION
    client, daemon = ring.keys["client-1"], ring.keys["daemon-1"]
    assert (client.role, client.algorithm, client.can_sign) == (
        Role.CLIENT,
        Algorithm.HMAC_SHA256,
        True,
    )
    assert (client.valid_from_ms, client.valid_until_ms) == (0, NEVER_MS)
    assert daemon.is_signed(b"data", daemon.sign(b"data"))
    (demand,) = ring.demands
    assert demand.groups == {"a", "b"}
    assert (demand.from_ms, demand.until_ms, demand.fresh_ms) == (5, NEVER_MS, 60_000)


def test_the_public_part_alone_verifies() -> None:
    """A reader needs nothing that signs."""
    whole = key_ring(a_table(a_key("client", algorithm="ed25519", secret="", private=PRIVATE)))
    reader = key_ring(a_table(a_key("client", algorithm="ed25519", secret="", public=PUBLIC)))
    signature = whole.keys["client-1"].sign(b"data")
    assert not reader.keys["client-1"].can_sign
    assert reader.keys["client-1"].is_signed(b"data", signature)
    assert not reader.keys["client-1"].is_signed(b"date", signature)


def test_secrets_are_not_shown() -> None:
    """A key may come into a log or a traceback: what signs does not."""
    key = key_ring(a_table(a_key("client"))).keys["client-1"]
    assert "client..." not in repr(key)
    assert "secret" not in repr(key)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"installation": ""}, "installation"),
        ({"instalation": "x"}, "'instalation' is none of"),
        ({"keys": [a_key("client"), a_key("client")]}, "two keys have the id client-1"),
        ({"keys": [a_key("client", id="a b")]}, "id"),
        ({"keys": [a_key("client", role="owner")]}, "role: client, daemon, operator"),
        ({"keys": [a_key("client", groups=[])]}, "groups"),
        ({"keys": [a_key("client", groups="orders")]}, "groups"),
        ({"keys": [a_key("client", algorithm="sha1")]}, "algorithm"),
        ({"keys": [a_key("client", secret="MTIz")]}, "32 bytes"),
        ({"keys": [a_key("client", secret="?")]}, "no base64"),
        ({"keys": [a_key("client", secret=secret("s"), public=PUBLIC)]}, "neither public"),
        ({"keys": [a_key("client", algorithm="ed25519")]}, "no secret"),
        ({"keys": [a_key("client", algorithm="ed25519", secret="")]}, "public or private"),
        (
            {
                "keys": [
                    a_key("client", algorithm="ed25519", secret="", private=PRIVATE, public=PRIVATE)
                ]
            },
            "not that of its private one",
        ),
        ({"keys": [a_key("client", valid_until_ms=0)]}, "valid_until_ms is not after"),
        ({"keys": [a_key("client", valid_from_ms=-1)]}, "valid_from_ms"),
        ({"keys": [a_key("client", valid_from_ms=True)]}, "valid_from_ms"),
        ({"keys": "x"}, "tables"),
        ({"demands": [{"groups": ["*"]}]}, "from_ms"),
        ({"demands": [{"groups": ["*"], "form_ms": 1}]}, "'form_ms' is none of"),
        ({"demands": [{"groups": ["*"], "from_ms": 1, "fresh_ms": 10}]}, "60000"),
        ({"demands": [{"from_ms": 1}]}, "groups"),
    ],
)
def test_what_is_wrong_is_refused(change: dict[str, Any], text: str) -> None:
    """A misspelt demand must not go unnoticed: nobody would sign, and nobody verify."""
    with pytest.raises(KeyFileError, match=text):
        key_ring({**a_table(), **change})


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """The error names the file."""
    with pytest.raises(KeyFileError, match=r"nowhere\.toml") as caught:
        load_key_file(tmp_path / "nowhere.toml")
    assert caught.value.path == str(tmp_path / "nowhere.toml")
    (tmp_path / "broken.toml").write_text("= =")
    with pytest.raises(KeyFileError, match=r"broken\.toml"):
        load_key_file(tmp_path / "broken.toml")

"""Ed25519, against a published test vector."""

import sys

import pytest

from halfbridge.serde.ed25519 import KEY_BYTES, check_installed, is_signed, public_of, sign
from halfbridge.serde.errors import KeyFileError

# RFC 8032, 7.1, test 2.
PRIVATE = bytes.fromhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb")
PUBLIC = bytes.fromhex("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c")
DATA = b"\x72"
SIGNATURE = bytes.fromhex(
    "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
    "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
)


def test_keys_and_signatures_are_those_of_the_standard() -> None:
    """So other implementations verify what this one signs."""
    assert len(PRIVATE) == KEY_BYTES
    assert public_of(PRIVATE) == PUBLIC
    assert sign(PRIVATE, DATA) == SIGNATURE
    assert is_signed(PUBLIC, DATA, SIGNATURE)


@pytest.mark.parametrize(
    ("public", "data", "signature"),
    [
        (PUBLIC, b"\x73", SIGNATURE),
        (PUBLIC, DATA, SIGNATURE[:-1] + b"\x01"),
        (PUBLIC, DATA, SIGNATURE[:-1]),
        (PUBLIC, DATA, b""),
        (public_of(bytes(KEY_BYTES)), DATA, SIGNATURE),
    ],
)
def test_anything_else_is_not_signed(public: bytes, data: bytes, signature: bytes) -> None:
    """Other data, another signature, a part of it, another key: False, and no error."""
    assert not is_signed(public, data, signature)


def test_a_missing_package_is_an_error_of_the_key_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install."""
    check_installed()
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(KeyFileError, match=r"pip install 'halfbridge\[signing\]'"):
        check_installed()

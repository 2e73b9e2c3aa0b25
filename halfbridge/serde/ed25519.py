"""Ed25519 by the package `cryptography`, which the extra `signing` brings. Pure."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from halfbridge.extras import needs
from halfbridge.serde.errors import KeyFileError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

KEY_BYTES = 32  # RFC 8032, 5.1.5
# Signing keys that a process uses: as many as a key file may hold.
_KEYS_MAX = 1_000


def public_of(private: bytes) -> bytes:
    """Return the public part of a private key of KEY_BYTES."""
    return _private(private).public_key().public_bytes_raw()


def sign(private: bytes, data: bytes) -> bytes:
    """Return the signature of `data`, 64 bytes."""
    return _private(private).sign(data)


def is_signed(public: bytes, data: bytes, signature: bytes) -> bool:
    """Tell whether `signature` is one of `data` by the private part of `public`."""
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 (an extra)

    try:
        _public(public).verify(signature, data)
    except InvalidSignature:
        return False
    return True


def check_installed() -> None:
    """Raise KeyFileError if the package is missing; the user installs the extra."""
    try:
        import cryptography  # noqa: F401, PLC0415 (an extra)
    except ImportError as error:
        raise KeyFileError(needs("an ed25519 key", "cryptography")) from error


@lru_cache(_KEYS_MAX)
def _private(private: bytes) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415 (an extra)

    return ed25519.Ed25519PrivateKey.from_private_bytes(private)


@lru_cache(_KEYS_MAX)
def _public(public: bytes) -> Ed25519PublicKey:
    from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415 (an extra)

    return ed25519.Ed25519PublicKey.from_public_bytes(public)

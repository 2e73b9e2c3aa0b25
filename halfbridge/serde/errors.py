"""Errors of the wire format.

SerdeError (ValueError)
├─ DecodeError           the bytes are not what they should be; whoever wrote them must act
│  ├─ UnknownSchemaError     written by a newer halfbridge; whoever runs this reader must upgrade
│  └─ NotBelievedError       a signature is demanded, and the record has none that holds
├─ KeyFileError          a key file is wrong; its owner corrects it
└─ NoSigningKeyError     no key to sign with; whoever keeps the key file adds one
"""

from __future__ import annotations


class SerdeError(ValueError):
    """Something on the wire is not as agreed."""


class DecodeError(SerdeError):
    """Bytes could not be decoded; `data` keeps them, `reason` says what was wrong."""

    def __init__(self, reason: str, data: bytes | None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.data = data


class UnknownSchemaError(DecodeError):
    """The writer's schema, `fingerprint`, is not known here: upgrade this reader."""

    def __init__(self, reason: str, data: bytes, fingerprint: str) -> None:
        super().__init__(reason, data)
        self.fingerprint = fingerprint


class NotBelievedError(DecodeError):
    """A record has no signature that holds, and one is demanded: what it says has no effect."""


class KeyFileError(SerdeError):
    """A key file cannot be read, or says what is not allowed."""


class NoSigningKeyError(SerdeError):
    """A record must be signed, and no key may sign it now."""

"""Errors of the wire format.

SerdeError (ValueError)
├─ DecodeError           the bytes are not valid; their writer must act
│  ├─ UnknownSchemaError     written by a newer halfbridge; the reader must be upgraded
│  └─ NotBelievedError       a signature is demanded, and the record has none that holds
├─ KeyFileError          a key file is wrong; its owner corrects it
└─ NoSigningKeyError     no key to sign with; the owner of the key file adds one
"""

from __future__ import annotations


class SerdeError(ValueError):
    """Something on the wire is not as agreed."""


class DecodeError(SerdeError):
    """Bytes could not be decoded; `data` keeps them, `reason` names the fault."""

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
    """A record has no valid signature, and one is demanded: the record has no effect."""


class KeyFileError(SerdeError):
    """A key file cannot be read, or its content is not allowed; `path` is "" for a table."""

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class NoSigningKeyError(SerdeError):
    """A record must be signed, and no key may sign it now."""

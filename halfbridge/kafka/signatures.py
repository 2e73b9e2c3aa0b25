"""What a process needs to sign and to verify, read from its key file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from halfbridge.kafka.errors import ConfigError
from halfbridge.serde.errors import KeyFileError, NoSigningKeyError
from halfbridge.serde.signatures import Signer, Verifier
from halfbridge.serde.signing_keys import Role, load_key_file

if TYPE_CHECKING:
    from halfbridge.serde.headers import Header
    from halfbridge.serde.signing_keys import KeyRing
    from halfbridge.serde.topics import TopicNames

# Makes the error of a key file that cannot be used, from a text that says why.
WrongFile = Callable[[str], ConfigError]


@dataclass(frozen=True, slots=True)
class Signatures:
    """The keys of one process; the default neither signs nor verifies.

    Attributes:
        ring: What the key file says; None: there is no key file.
        verifier: Judges records; None: every record is believed.
        signer: Signs records; None: records are written without signatures.
    """

    ring: KeyRing | None = None
    verifier: Verifier | None = None
    signer: Signer | None = None


NO_SIGNATURES = Signatures()


def load_signatures(path: Path | str | None, role: Role, names: TopicNames) -> Signatures:
    """Return what the key file at `path` says; NO_SIGNATURES without one.

    The signer is None where the file has no key by which `role` may sign.

    Raises ConfigError: the file cannot be read or used; its owner corrects it.
    """
    if not path:
        return NO_SIGNATURES
    try:
        ring = load_key_file(Path(path))
    except KeyFileError as error:
        raise wrong_key_file(path, str(error)) from error
    signs = any(key.role is role and key.can_sign for key in ring.keys.values())
    return Signatures(ring, Verifier(ring, names), Signer(ring, role, names) if signs else None)


def wrong_key_file(path: Path | str, allowed: str) -> ConfigError:
    """Return the error of a key file that cannot be used."""
    return ConfigError(
        field="key_file",
        value=repr(str(path)),
        origin="the configuration",
        allowed=f"a key file (docs/how-to/sign-records.md); this one: {allowed}",
    )


class ClientSigner:
    """Signs the records of one producer group. Thread-safe."""

    def __init__(self, signer: Signer, group: str, wrong: WrongFile) -> None:
        self._signer = signer
        self._group = group
        self._wrong = wrong

    def half(
        self,
        partition: int,
        headers: list[Header],
        *,
        key: bytes | None,
        value: bytes | None,
        now_ms: int,
    ) -> list[Header]:
        """Return a half record's headers, signed.

        Raises ConfigError: no key may sign now; the owner of the key file adds one.
        """
        try:
            return self._signer.half(
                self._group, partition, headers, key=key, value=value, now_ms=now_ms
            )
        except NoSigningKeyError as error:
            raise self._wrong(str(error)) from error

    def op(self, partition: int, key: bytes, value: bytes, now_ms: int) -> list[Header]:
        """Return the headers of an op record: its signature. Raises as `half`."""
        try:
            return self._signer.op(self._group, partition, key=key, value=value, now_ms=now_ms)
        except NoSigningKeyError as error:
            raise self._wrong(str(error)) from error


def client_signer(
    path: str, group: str, names: TopicNames, *, now_ms: int, wrong: WrongFile | None = None
) -> ClientSigner | None:
    """Return the signer of a producer group; None without a key file.

    The time is `now_ms`, ms since 1970. `wrong` is as in ClientSigner; None: `wrong_key_file`.

    Raises ConfigError: the file cannot be used, or has no key by which the group may sign now; its
    owner corrects it.
    """
    if not path:
        return None
    wrong = wrong or partial(wrong_key_file, path)
    try:
        ring = load_key_file(Path(path))
    except KeyFileError as error:
        raise wrong(str(error)) from error
    signer = ClientSigner(Signer(ring, Role.CLIENT, names), group, wrong)
    signer.op(0, b"", b"", now_ms)
    return signer

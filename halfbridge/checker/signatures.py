"""Keys of daemon and operators: read from the key file, and held to what each of them writes."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from halfbridge.checker.errors import AdminSetupError
from halfbridge.kafka.signatures import Signatures, load_signatures, wrong_key_file
from halfbridge.serde.errors import NoSigningKeyError
from halfbridge.serde.signing_keys import Role

if TYPE_CHECKING:
    from halfbridge.checker.config import CheckerConfig
    from halfbridge.serde.headers import Headers

_log = logging.getLogger("halfbridge.checker")


def daemon_signatures(config: CheckerConfig) -> Signatures:
    """Return what the daemon's key file says; nothing is signed or verified without one.

    Raises:
        ConfigError: the file cannot be used, or demands signatures and has no key by which the
            daemon may sign: its own copies would not be believed. The operator corrects the file.
    """
    found = load_signatures(config.key_file, Role.DAEMON, config.names)
    if found.ring is None:
        return found
    if found.ring.demands and found.signer is None:
        raise wrong_key_file(
            config.key_file or "", "it demands signatures, and has no key of role daemon that signs"
        )
    return found


def operator_signatures(config: CheckerConfig) -> Signatures:
    """Return an operator's signatures. ConfigError: the key file is unusable; its owner acts."""
    return load_signatures(config.key_file, Role.OPERATOR, config.names)


def check_signer(signatures: Signatures, group: str, now_ms: int) -> None:
    """Check that a record about a group can be signed if it must be.

    Raises AdminSetupError: no key in the file can sign it; the owner of the file adds one.
    """
    ring, signer = signatures.ring, signatures.signer
    if ring is None:
        return
    if signer is None:
        if ring.demands_of(group, now_ms):
            raise AdminSetupError(
                f"signatures are demanded for group {group}, and the key file has no key of role"
                " operator that signs: nothing was written. Add one, or use the file that has it",
                group=group,
            )
        return
    try:
        signer.check(group, now_ms)
    except NoSigningKeyError as error:
        raise AdminSetupError(f"{error}; nothing was written", group=group) from error


def signed_half(
    signatures: Signatures,
    group: str,
    partition: int,
    headers: Headers,
    *,
    key: bytes | None,
    value: bytes | None,
    now_ms: int,
) -> Headers:
    """Return a half record's headers, signed if a key exists; raises as `check_signer`."""
    check_signer(signatures, group, now_ms)
    if signatures.signer is None:
        return headers
    return signatures.signer.half(group, partition, headers, key=key, value=value, now_ms=now_ms)


def signed_op(
    signatures: Signatures, group: str, partition: int, *, key: bytes, value: bytes, now_ms: int
) -> Headers:
    """Return an op's headers, signed if a key exists; raises as `check_signer`."""
    check_signer(signatures, group, now_ms)
    if signatures.signer is None:
        return []
    return signatures.signer.op(group, partition, key=key, value=value, now_ms=now_ms)

"""Worker slots: the stable name for a worker's group membership and transactional ids.

A slot is given (`--slot`) or claimed: `<host>-<n>` with the first free n, under a file lock. The
system releases the lock when the process dies, so a slot is never leaked, and never held twice on
one machine. Machines cannot collide, because the slot contains the host's name.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from halfbridge.checker.errors import SlotError
from halfbridge.checker.loop.clients import SlotIds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self

# More workers on one machine mean that something starts workers without end.
SLOTS_MAX = 256
# Kafka: a group.instance.id has the form of a topic name, at most 249 characters. The longest
# transactional id that is derived from a slot must fit as well.
SLOT_CHARS_MAX = 120
_FOREIGN = re.compile(r"[^A-Za-z0-9._-]+")


def sanitise(name: str) -> str:
    """Return a name allowed as an instance id. SlotError: empty or too long; change `--slot`."""
    clean = _FOREIGN.sub("-", name).strip("-")
    if not clean or len(clean) > SLOT_CHARS_MAX:
        raise SlotError(
            f"slot {name!r} cannot be used: give --slot 1 to {SLOT_CHARS_MAX} characters"
            " out of letters, digits, '.', '_' and '-'"
        )
    return clean


def slot_ids(slot: str, *, topic_prefix: str) -> SlotIds:
    """Return the ids of `slot`: the same after a restart, different between installations."""
    name = sanitise(slot)
    return SlotIds(name, f"{topic_prefix}halfbridge-{name}")


def host_name() -> str:
    """Return this machine's name, as it is used in claimed slots."""
    return sanitise(socket.gethostname() or "host")


def default_state_dir(environ: Mapping[str, str]) -> Path:
    """Return the directory of lock files: XDG state, else a user's directory in the temp dir."""
    base = environ.get("XDG_STATE_HOME") or environ.get("HOME")
    if base and os.access(base, os.W_OK):
        root = Path(base)
        return root / "halfbridge" if environ.get("XDG_STATE_HOME") else root / _XDG_STATE
    return Path(tempfile.gettempdir()) / f"halfbridge-{os.getuid()}"


_XDG_STATE = Path(".local", "state", "halfbridge")


def installation_key(topic_prefix: str) -> str:
    """Return a short key for an installation's slots, from its prefix.

    One cluster may be named in several ways, so servers have no part in it. Installations on
    several clusters with one prefix share their slot numbers, which does no harm.
    """
    return hashlib.sha256(topic_prefix.encode()).hexdigest()[:12]


class SlotClaim:
    """A claimed slot, held until `release` or the end of the process."""

    def __init__(self, name: str, lock: TextIO) -> None:
        self.name = name
        self._lock = lock

    def release(self) -> None:
        """Free the slot; a second call does nothing."""
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.release()


def claim(state_dir: Path, *, installation: str, host: str | None = None) -> SlotClaim:
    """Return the first free slot `<host>-<n>` of this machine.

    `state_dir` must be on a local file system; it is created when missing, private to the user.

    Raises SlotError if it cannot be used, or all `SLOTS_MAX` slots are taken; the operator acts.
    """
    base = f"{host_name() if host is None else sanitise(host)}-"
    directory = state_dir / "slots" / installation
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for number in range(SLOTS_MAX):
            lock = _try_lock(directory / f"{base}{number}.lock")
            if lock is not None:
                return SlotClaim(f"{base}{number}", lock)
    except OSError as error:
        raise SlotError(
            f"cannot lock a worker slot in {directory} ({error.strerror or error}):"
            " give --state-dir a writable local directory, or give --slot"
        ) from error
    raise SlotError(f"all {SLOTS_MAX} slots in {directory} are taken: stop a worker or give --slot")


def claim_many(state_dir: Path, count: int, *, installation: str) -> list[SlotClaim]:
    """Return `count` claimed slots of this machine; if one claim fails, all are released."""
    claims: list[SlotClaim] = []
    try:
        claims.extend(claim(state_dir, installation=installation) for _ in range(count))
    except SlotError:
        for held in claims:
            held.release()
        raise
    return claims


def _try_lock(path: Path) -> TextIO | None:
    # The file is never removed, because after an unlink two processes could lock two inodes of one
    # name. Python opens files close-on-exec, so no child keeps the slot of a dead parent.
    lock = path.open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    except OSError:
        lock.close()
        raise
    return lock

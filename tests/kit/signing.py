"""Key files for tests: one key for each role, and a demand where a test wants one."""

from base64 import b64encode
from pathlib import Path
from typing import Any

from halfbridge.serde.signing_keys import KeyRing, key_ring

INSTALLATION = "shop"
# Of each role: an id and a secret that nobody should use elsewhere.
ROLES = ("client", "daemon", "operator")


def secret(text: str) -> str:
    """Return a secret of 32 bytes in base64."""
    return b64encode(text.encode().ljust(32, b".")).decode()


def a_key(role: str, /, **more: Any) -> dict[str, Any]:
    """Return the table of an HMAC key for all groups; `more` replaces fields."""
    return {
        "id": f"{role}-1",
        "role": role,
        "groups": ["*"],
        "algorithm": "hmac-sha256",
        "secret": secret(role),
        **more,
    }


def a_table(*keys: dict[str, Any], demands: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Return the table of a key file; without `keys` one for each role."""
    return {
        "installation": INSTALLATION,
        "keys": list(keys) or [a_key(role) for role in ROLES],
        "demands": [{"groups": ["*"], "from_ms": 0}] if demands is None else demands,
    }


def a_ring(*keys: dict[str, Any], demands: list[dict[str, Any]] | None = None) -> KeyRing:
    """Return a key ring; arguments as in `a_table`."""
    return key_ring(a_table(*keys, demands=demands))


def write_key_file(path: Path, table: dict[str, Any]) -> Path:
    """Write a key file and return its path."""
    lines = [f'installation = "{table["installation"]}"']
    for kind in ("keys", "demands"):
        for each in table[kind]:
            lines += [f"[[{kind}]]", *(f"{name} = {_toml(value)}" for name, value in each.items())]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def _toml(value: object) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return f'"{value}"' if isinstance(value, str) else str(value)

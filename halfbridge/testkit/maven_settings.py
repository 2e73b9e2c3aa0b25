"""What a Maven user's settings.xml says of the central repository: mirror, credentials, proxy.

Source: Maven's settings reference, DefaultMirrorSelector and DefaultProxySelector. Encrypted
passwords are not decrypted: a mirror that needs one is refused with an error.
"""

from __future__ import annotations

import os
import re
import shutil
from base64 import b64encode
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CENTRAL = "central"
_ENCRYPTED = re.compile(r"(?<!\$)\{.+\}")
_VARIABLE = re.compile(r"\$\{(env\.)?([\w.]+)\}")


class MavenSettingsError(ValueError):
    """A settings.xml cannot be read; whoever wrote it corrects it."""


@dataclass(frozen=True, slots=True)
class Mirror:
    """In place of the central repository.

    Attributes:
        url: Its address.
        authorization: Value of the header Authorization; empty: none.
    """

    url: str
    authorization: str = ""


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy for HTTP.

    Attributes:
        protocol: Of the addresses that it is for: http or https.
        url: Its address, with user and password where it needs them.
        not_for: Patterns of hosts that are reached without it, such as `*.example`.
    """

    protocol: str
    url: str
    not_for: tuple[str, ...] = ()

    def is_for(self, protocol: str, host: str) -> bool:
        """Tell whether an address is reached by this proxy; one for http serves https too."""
        serves = protocol == self.protocol or (protocol, self.protocol) == ("https", "http")
        return serves and not any(fnmatchcase(host, pattern) for pattern in self.not_for)


@dataclass(frozen=True, slots=True)
class MavenSettings:
    """What one settings.xml says; None and (): nothing."""

    mirror: Mirror | None = None
    proxies: tuple[Proxy, ...] = ()


def settings_files(environ: Mapping[str, str], home: Path) -> Iterator[Path]:
    """Yield the settings.xml that are there: the user's, then those of Maven's installation."""
    homes = [Path(environ[name]) for name in ("MAVEN_HOME", "M2_HOME") if environ.get(name)]
    if mvn := shutil.which("mvn", path=environ.get("PATH", os.defpath)):
        homes.append(Path(mvn).resolve().parent.parent)
    for path in (home / ".m2", *(each / "conf" for each in homes)):
        file = path / "settings.xml"
        if file.is_file():
            yield file


def read_settings(path: Path, environ: Mapping[str, str]) -> MavenSettings:
    """Return what a settings.xml says of the central repository.

    Raises:
        MavenSettingsError: it is no XML, or the mirror's password is encrypted.
    """
    try:
        root = ET.fromstring(path.read_bytes())  # noqa: S314  (the user's own file)
    except (OSError, ET.ParseError) as error:
        raise MavenSettingsError(f"{path} cannot be read: {error}") from error
    servers = {each.get("id", ""): each for each in _entries(root, "servers", environ)}
    mirror = _mirror_of_central(list(_entries(root, "mirrors", environ)))
    proxies = tuple(
        _proxy(each)
        for each in _entries(root, "proxies", environ)
        if each.get("active", "true") == "true" and each.get("host")
    )
    if mirror is None:
        return MavenSettings(None, proxies)
    server = servers.get(mirror.get("id", ""), {})
    if _ENCRYPTED.search(server.get("password", "")):
        raise MavenSettingsError(
            f"{path}: the password of the mirror {mirror['id']} is encrypted; give"
            " HALFBRIDGE_MAVEN_REPOSITORY another address"
        )
    return MavenSettings(Mirror(mirror["url"], _authorization(server)), proxies)


def basic_authorization(user: str, password: str) -> str:
    """Return the value of the header Authorization for a user with a password."""
    return "Basic " + b64encode(f"{user}:{password}".encode()).decode()


def _entries(
    root: ET.Element, list_name: str, environ: Mapping[str, str]
) -> Iterator[dict[str, str]]:
    """Yield the entries of a list, each as texts by name, with variables in place."""
    for listed in root:
        if _name(listed) == list_name:
            for entry in listed:
                yield {_name(each): _text(each.text, environ) for each in entry}


def _name(element: ET.Element) -> str:
    return element.tag.rpartition("}")[2]


def _text(text: str | None, environ: Mapping[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        name = "HOME" if found[0] == "${user.home}" else found[2]
        return environ.get(name, found[0])

    return _VARIABLE.sub(value, (text or "").strip())


def _mirror_of_central(mirrors: list[dict[str, str]]) -> dict[str, str] | None:
    """Return the mirror of the central repository by name, else the first one by pattern."""
    usable = [each for each in mirrors if each.get("url") and each.get("blocked") != "true"]
    exact = [each for each in usable if each.get("mirrorOf") == CENTRAL]
    fitting = [each for each in usable if _mirrors_central(each.get("mirrorOf", ""))]
    return next(iter(exact + fitting), None)


def _mirrors_central(pattern: str) -> bool:
    words = [word.strip() for word in pattern.split(",")]
    return f"!{CENTRAL}" not in words and any(
        word in (CENTRAL, "*", "external:*") for word in words
    )


def _proxy(entry: dict[str, str]) -> Proxy:
    given = [quote(entry.get(name, ""), safe="") for name in ("username", "password")]
    user = ":".join(given) + "@" if given[0] else ""
    port = entry.get("port") or "8080"
    patterns = re.split(r"[|,]", entry.get("nonProxyHosts", ""))
    return Proxy(
        entry.get("protocol") or "http",
        f"http://{user}{entry['host']}:{port}",
        tuple(each.strip() for each in patterns if each.strip()),
    )


def _authorization(server: dict[str, str]) -> str:
    if not server.get("username"):
        return ""
    return basic_authorization(server["username"], server.get("password", ""))

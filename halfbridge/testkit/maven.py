"""Where jars are fetched from: the Maven repositories and proxies that the user has configured."""

from __future__ import annotations

import os
import re
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree as ET

from halfbridge.serde.settings import load, variable
from halfbridge.spark_jobs.session.ivy import JarsError
from halfbridge.spark_jobs.session.jar_settings import SETTINGS_VARIABLE, JarSettings
from halfbridge.testkit.maven_settings import (
    MavenSettingsError,
    Mirror,
    Proxy,
    basic_authorization,
    read_settings,
    settings_files,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

REPOSITORY_VARIABLE = variable("maven_repository")
# What Java users set for every JVM, and for Maven's.
_JAVA_OPTIONS = ("JAVA_TOOL_OPTIONS", "MAVEN_OPTS")
_PROXY_OPTION = re.compile(r"-D(https?)\.(proxyHost|proxyPort|nonProxyHosts)=(\S+)")


@dataclass(frozen=True, slots=True)
class Repository:
    """A Maven repository in the usual layout.

    Attributes:
        url: Its address, without a slash at the end.
        authorization: Value of the header Authorization; empty: none.
        proxy: Address of the proxy; empty: as the variables https_proxy and no_proxy say.
    """

    url: str
    authorization: str = ""
    proxy: str = ""

    @property
    def shown(self) -> str:
        """The address without user and password."""
        parts = urlsplit(self.url)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()

    def opener(self) -> urllib.request.OpenerDirector:
        """Return what opens addresses of this repository."""
        if not self.proxy:
            return urllib.request.build_opener()
        proxies = dict.fromkeys(("http", "https"), self.proxy)
        return urllib.request.build_opener(urllib.request.ProxyHandler(proxies))

    def request(self, path: str) -> urllib.request.Request:
        """Return the request for a file; a redirect to another host is not told the password."""
        request = urllib.request.Request(f"{self.url}/{path}")  # noqa: S310  (the user's address)
        if self.authorization:
            request.add_unredirected_header("Authorization", self.authorization)
        return request


def repositories(
    environ: Mapping[str, str] | None = None, home: Path | None = None
) -> tuple[Repository, ...]:
    """Return where to fetch jars, in the order in which to try.

    HALFBRIDGE_MAVEN_REPOSITORY, else the roots of the Ivy settings file that
    HALFBRIDGE_IVY_SETTINGS names, else the mirror of the central repository in Maven's
    settings.xml (the user's, then the installation's), else the central repository. Proxies are
    those of settings.xml, else of JAVA_TOOL_OPTIONS or MAVEN_OPTS, else of the environment.

    Args:
        environ: Read instead of the process's environment.
        home: Read instead of the user's home directory.

    Raises:
        JarsError: a settings file cannot be used, or no repository is known; the user must act.
    """
    env = os.environ if environ is None else environ
    given = load(JarSettings, environ=env)
    try:
        maven = [read_settings(path, env) for path in settings_files(env, home or _home())]
    except MavenSettingsError as error:
        raise JarsError(str(error)) from error
    proxies = [proxy for each in maven for proxy in each.proxies] or _java_proxies(env)
    if given.maven_repository:
        mirrors = [Mirror(given.maven_repository)]
    elif given.ivy_settings:
        mirrors = _ivy_roots(Path(given.ivy_settings).expanduser())
    else:
        mirrors = [each.mirror for each in maven if each.mirror is not None][:1]
    return tuple(_behind_proxy(each, proxies) for each in mirrors or [Mirror(_central())])


def _home() -> Path:
    """Return the user's home directory; for a user without one, a path with no files below it."""
    try:
        return Path.home()
    except RuntimeError:  # neither HOME nor an entry among the users of this machine
        return Path(os.devnull)


def _with_password(url: str) -> Mirror:
    """Return an address without the user and password in it, and these as a header."""
    parts = urlsplit(url)
    if parts.username is None:
        return Mirror(url)
    host = parts.netloc.rpartition("@")[2]
    user, password = unquote(parts.username), unquote(parts.password or "")
    return Mirror(parts._replace(netloc=host).geturl(), basic_authorization(user, password))


def _behind_proxy(mirror: Mirror, proxies: list[Proxy]) -> Repository:
    if not mirror.authorization:
        mirror = _with_password(mirror.url)
    url = mirror.url.rstrip("/")
    parts = urlsplit(url)
    fitting = (each.url for each in proxies if each.is_for(parts.scheme, parts.hostname or ""))
    return Repository(url, mirror.authorization, next(fitting, ""))


def _java_proxies(environ: Mapping[str, str]) -> list[Proxy]:
    options = " ".join(environ.get(name, "") for name in _JAVA_OPTIONS)
    found: dict[str, dict[str, str]] = {"https": {}, "http": {}}
    for protocol, name, value in _PROXY_OPTION.findall(options):
        found[protocol][name] = value.strip("'\"")
    # Java knows one list of hosts without a proxy, for both protocols.
    not_for = found["http"].get("nonProxyHosts", "").split("|")
    return [
        Proxy(
            protocol,
            f"http://{each['proxyHost']}:{each.get('proxyPort', '80')}",
            tuple(filter(None, not_for)),
        )
        for protocol, each in found.items()
        if "proxyHost" in each
    ]


def _ivy_roots(path: Path) -> list[Mirror]:
    try:
        tree = ET.fromstring(path.read_bytes())  # noqa: S314  (the user's own file)
    except (OSError, ET.ParseError) as error:
        raise JarsError(f"{SETTINGS_VARIABLE}={path} cannot be read: {error}") from error
    roots = [
        Mirror(each.get("root", ""))
        for each in tree.iter("ibiblio")
        if each.get("root") and each.get("m2compatible") == "true"
    ]
    if not roots:
        raise JarsError(
            f'{SETTINGS_VARIABLE}={path} has no <ibiblio m2compatible="true" root=...>: set'
            f" {REPOSITORY_VARIABLE} to a Maven repository's address"
        )
    return roots


def _central() -> str:
    """Return the address of the central repository, as jgo has it."""
    try:
        from jgo.constants import MAVEN_CENTRAL_URL  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise JarsError(
            "no Maven repository is known: pip install 'halfbridge[embedded]', or set"
            f" {REPOSITORY_VARIABLE} to the address of one"
        ) from error
    return str(MAVEN_CENTRAL_URL)

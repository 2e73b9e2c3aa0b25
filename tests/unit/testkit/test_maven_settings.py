"""What of a Maven user's settings.xml counts."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

import pytest

from halfbridge.testkit.maven_settings import (
    MavenSettings,
    MavenSettingsError,
    Proxy,
    read_settings,
    settings_files,
)

HEAD = '<settings xmlns="urn:settings">'  # Maven's files have a namespace, which counts for nothing


def mirror(pattern: str, url: str = "https://mirror.example/maven/", name: str = "m") -> str:
    """Return a mirror's element."""
    return f"<mirror><id>{name}</id><url>{url}</url><mirrorOf>{pattern}</mirrorOf></mirror>"


def read(tmp_path: Path, inner: str, **environ: str) -> MavenSettings:
    """Return what a settings.xml with `inner` says."""
    path = tmp_path / "settings.xml"
    path.write_text(f"{HEAD}{inner}</settings>")
    return read_settings(path, environ)


@pytest.mark.parametrize("pattern", ["central", "*", "external:*", "other, *", "*,!other"])
def test_a_mirror_of_central_is_found(tmp_path: Path, pattern: str) -> None:
    """By its name, or by a pattern that includes it."""
    found = read(tmp_path, f"<mirrors>{mirror(pattern)}</mirrors>").mirror
    assert found is not None
    assert (found.url, found.authorization) == ("https://mirror.example/maven/", "")


@pytest.mark.parametrize("pattern", ["other", "*,!central", "external:http:*", ""])
def test_a_mirror_of_others_is_not(tmp_path: Path, pattern: str) -> None:
    """A repository that is left out is reached as it stands."""
    assert read(tmp_path, f"<mirrors>{mirror(pattern)}</mirrors>").mirror is None


def test_the_name_goes_before_a_pattern_and_a_blocked_one_is_none(tmp_path: Path) -> None:
    """As Maven chooses among several."""
    blocked = mirror("central").replace("</mirror>", "<blocked>true</blocked></mirror>")
    inner = (
        f"<mirrors>{blocked}{mirror('*', 'https://a')}{mirror('central', 'https://b')}</mirrors>"
    )
    found = read(tmp_path, inner).mirror
    assert found is not None
    assert found.url == "https://b"


def test_a_mirrors_password_is_its_servers(tmp_path: Path) -> None:
    """With variables of the environment in place; another server's is not taken."""
    server = "<server><id>{}</id><username>${{env.WHO}}</username><password>p</password></server>"
    inner = f"<mirrors>{mirror('*')}</mirrors><servers>{{}}</servers>"
    found = read(tmp_path, inner.format(server.format("m")), WHO="me").mirror
    assert found is not None
    assert found.authorization == "Basic " + b64encode(b"me:p").decode()
    other = read(tmp_path, inner.format(server.format("other")), WHO="me").mirror
    assert other is not None
    assert other.authorization == ""
    with pytest.raises(MavenSettingsError, match=r"mirror m is encrypted.*HALFBRIDGE_MAVEN_REP"):
        read(tmp_path, inner.format(server.format("m").replace(">p<", ">{k3y=}<")), WHO="me")


def test_proxies_are_those_that_are_active(tmp_path: Path) -> None:
    """For their protocol, with user and password; hosts may be left out."""
    proxy = (
        "<proxy><active>{}</active><protocol>{}</protocol><username>u</username>"
        "<password>p</password><host>proxy.example</host><port>3128</port>"
        "<nonProxyHosts>localhost|*.inside</nonProxyHosts></proxy>"
    )
    inner = f"<proxies>{proxy.format('false', 'https')}{proxy.format('true', 'http')}</proxies>"
    (found,) = read(tmp_path, inner).proxies
    assert found == Proxy("http", "http://u:p@proxy.example:3128", ("localhost", "*.inside"))
    assert found.is_for("http", "a.example")
    assert found.is_for("https", "a.example")
    assert not found.is_for("https", "a.inside")
    assert not Proxy("https", "x").is_for("http", "a.example")


def test_a_proxys_password_may_have_any_sign(tmp_path: Path) -> None:
    """Otherwise the address has another host, and the error of a library shows the password."""
    proxy = "<proxy><username>a@b</username><password>p/w@1:%</password><host>h</host></proxy>"
    (found,) = read(tmp_path, f"<proxies>{proxy}</proxies>").proxies
    assert found.url == "http://a%40b:p%2Fw%401%3A%25@h:8080"


def test_what_is_no_xml_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    """The user's file is broken for Maven too."""
    path = tmp_path / "settings.xml"
    path.write_text("<settings>")
    with pytest.raises(MavenSettingsError, match=str(path)):
        read_settings(path, {})


def test_the_users_file_goes_before_the_installations(tmp_path: Path) -> None:
    """MAVEN_HOME, M2_HOME, and the place of `mvn`; a file that is not there is left out."""
    home, maven = tmp_path / "me", tmp_path / "maven"
    (home / ".m2").mkdir(parents=True)
    (maven / "conf").mkdir(parents=True)
    for path in (home / ".m2", maven / "conf"):
        (path / "settings.xml").write_text(f"{HEAD}</settings>")
    environ = {"PATH": "", "MAVEN_HOME": str(maven), "M2_HOME": str(tmp_path / "none")}
    found = list(settings_files(environ, home))
    assert found == [home / ".m2" / "settings.xml", maven / "conf" / "settings.xml"]
    assert list(settings_files({"PATH": ""}, maven)) == []

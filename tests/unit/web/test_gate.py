"""Who may use the page: the token file, tokens that change, and the rate of requests."""

from pathlib import Path

import pytest

from halfbridge.kafka.errors import ConfigError
from halfbridge.web.gate import (
    AGE_S_MAX,
    IDLE_S_MAX,
    KEYS_MAX,
    RELOAD_S,
    SESSIONS_MAX,
    SESSIONS_OF_ONE_MAX,
    Principal,
    RateLimit,
    Role,
    Sessions,
    TokenFile,
    read_tokens,
)
from tests.kit.web import OPERATE_TOKEN, READ_TOKEN, ManualClock, token_file


def _file(directory: Path, text: str, mode: int = 0o600) -> Path:
    path = directory / "tokens"
    path.write_text(text, "utf-8")
    path.chmod(mode)
    return path


def test_a_token_has_the_role_and_the_name_of_its_line(tmp_path: Path) -> None:
    """Each token is found with its role; a token of no line is nobody's."""
    tokens = read_tokens(token_file(tmp_path))
    found = tokens.find(OPERATE_TOKEN)
    assert found is not None
    assert (found.name, found.role) == ("alice", Role.OPERATE)
    assert tokens.find(READ_TOKEN + "x") is None
    assert tokens.find("") is None


def test_a_token_without_a_name_is_named_by_its_digest(tmp_path: Path) -> None:
    """The audit log tells two unnamed tokens apart, and does not show them."""
    found = read_tokens(_file(tmp_path, f"# ours\n\nread {READ_TOKEN}\n")).find(READ_TOKEN)
    assert found is not None
    assert found.name.startswith("token-")
    assert READ_TOKEN not in found.name


def test_operate_allows_reading_and_read_no_change() -> None:
    """The roles form an order."""
    assert Role.OPERATE.allows(Role.READ)
    assert not Role.READ.allows(Role.OPERATE)


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("admin 0123456789abcdef\n", "in line 1"),
        ("read short\n", "16 to 256"),
        (f"read {'x' * 257}\n", "16 to 256"),
        ("read 0123456789abcdef a/b\n", "letters"),
        ("read 0123456789abcdef a b\n", "in line 1"),
        ("read 0123456789abcdef\noperate 0123456789abcdef\n", "each token once"),
        ("# nothing\n", "1 to 1000 tokens"),
        ("x" * (1024 * 1024 + 1), "bytes"),
        ("".join(f"read 0123456789abcdef{each}\n" for each in range(1001)), "1 to 1000 tokens"),
    ],
)
def test_a_wrong_file_is_refused_without_showing_a_token(
    tmp_path: Path, text: str, allowed: str
) -> None:
    """The error names the line and what is allowed; a log that shows it gives nothing away."""
    with pytest.raises(ConfigError, match=allowed) as caught:
        read_tokens(_file(tmp_path, text))
    assert "0123456789abcdef" not in str(caught.value)


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o620, 0o644])
def test_a_file_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    """A reader of the file has all rights of the daemon's operators."""
    with pytest.raises(ConfigError, match=f"mode {mode:04o}"):
        read_tokens(_file(tmp_path, f"read {READ_TOKEN}\n", mode))


def test_a_missing_file_and_a_directory_are_refused(tmp_path: Path) -> None:
    """The error says what is wanted."""
    with pytest.raises(ConfigError, match="can read"):
        read_tokens(tmp_path / "none")
    with pytest.raises(ConfigError, match=r"can read|regular"):
        read_tokens(tmp_path)


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    """A token that was taken out is nobody's after `RELOAD_S`, without a restart."""
    clock = ManualClock()
    file = TokenFile(token_file(tmp_path), monotonic=clock)
    _file(tmp_path, f"read {OPERATE_TOKEN} bob\n")
    assert file.current().find(READ_TOKEN) is not None
    clock.now_s += RELOAD_S
    assert file.current().find(READ_TOKEN) is None
    found = file.current().find(OPERATE_TOKEN)
    assert found is not None
    assert found.role is Role.READ


def test_a_file_that_became_wrong_leaves_the_tokens_of_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A damaged file locks no user out, and a line is logged."""
    clock = ManualClock()
    file = TokenFile(token_file(tmp_path), monotonic=clock)
    _file(tmp_path, "operate\n")
    clock.now_s += RELOAD_S
    assert file.current().find(READ_TOKEN) is not None
    assert "the old tokens stay" in caplog.text


# --- sessions end by idleness, by age, and where there are too many ------------------------

ALICE = Principal("alice", Role.OPERATE)


def test_a_session_is_found_by_its_id_only() -> None:
    """Two sessions have different ids and different CSRF tokens."""
    sessions = Sessions(monotonic=ManualClock())
    one, other = sessions.open(ALICE), sessions.open(ALICE)
    assert sessions.find(one.key) == one
    assert one.key != other.key
    assert one.has_csrf(one.csrf)
    assert not one.has_csrf(other.csrf)
    assert not one.has_csrf("")
    assert sessions.find("") is None


def test_an_idle_session_ends() -> None:
    """Each request restarts the time."""
    clock = ManualClock()
    sessions = Sessions(monotonic=clock)
    session = sessions.open(ALICE)
    for _ in range(2):
        clock.now_s += IDLE_S_MAX
        assert sessions.find(session.key) is not None
    clock.now_s += IDLE_S_MAX + 1
    assert sessions.find(session.key) is None


def test_a_session_in_use_ends_by_age() -> None:
    """A browser that a page keeps busy signs in again after half a day."""
    clock = ManualClock()
    sessions = Sessions(monotonic=clock)
    session = sessions.open(ALICE)
    while clock.now_s < 1000.0 + AGE_S_MAX:
        clock.now_s += IDLE_S_MAX
        last = sessions.find(session.key)
    clock.now_s += 1
    assert last is not None
    assert sessions.find(session.key) is None


def test_the_session_that_was_used_longest_ago_makes_room() -> None:
    """Signing in without an end costs no more memory than `SESSIONS_MAX` sessions."""
    sessions = Sessions(monotonic=ManualClock())
    first, second = sessions.open(ALICE), sessions.open(ALICE)
    assert sessions.find(first.key) is not None  # used last
    for number in range(SESSIONS_MAX - 1):
        sessions.open(Principal("other", Role.READ, number.to_bytes(4, "big")))
    assert sessions.find(first.key) is not None
    assert sessions.find(second.key) is None


def test_one_token_ends_no_session_of_another() -> None:
    """Repeated sign-ins end only the oldest of the same token's sessions."""
    sessions = Sessions(monotonic=ManualClock())
    alice = sessions.open(ALICE)
    grafana = Principal("grafana", Role.READ, b"another token")
    opened = [sessions.open(grafana) for _ in range(SESSIONS_MAX + 1)]
    assert sessions.find(alice.key) is not None
    assert sum(sessions.find(each.key) is not None for each in opened) == SESSIONS_OF_ONE_MAX
    assert sessions.find(opened[-1].key) is not None


def test_words_are_shown_once_and_to_their_session() -> None:
    """What came of a change is shown on the next page of who made it."""
    sessions = Sessions(monotonic=ManualClock())
    one, other = sessions.open(ALICE), sessions.open(ALICE)
    sessions.set_notice(one, "done")
    assert (sessions.pop_notice(other), sessions.pop_notice(one), sessions.pop_notice(one)) == (
        "",
        "done",
        "",
    )


# --- buckets of requests -------------------------------------------------------------------


def test_a_full_bucket_empties_and_fills_again() -> None:
    """Three at once; then one each half second, and the answer says how long to wait."""
    clock = ManualClock()
    limit = RateLimit(2.0, 3, monotonic=clock)
    assert [limit.take("a") for _ in range(4)] == [0, 0, 0, 1]
    clock.now_s += 0.5
    assert [limit.take("a") for _ in range(2)] == [0, 1]
    clock.now_s += 3600
    assert [limit.take("a") for _ in range(4)] == [0, 0, 0, 1]


def test_keys_have_buckets_of_their_own() -> None:
    """One client's requests cost another nothing."""
    limit = RateLimit(1.0, 1, monotonic=ManualClock())
    assert [limit.take("a"), limit.take("a"), limit.take("b")] == [0, 1, 0]


def test_asking_takes_nothing() -> None:
    """`wait_s` only looks."""
    limit = RateLimit(1.0, 1, monotonic=ManualClock())
    assert [limit.wait_s("a") for _ in range(3)] == [0, 0, 0]


def test_keys_without_end_take_bounded_memory() -> None:
    """The key that was used longest ago is forgotten."""
    limit = RateLimit(1.0, 1, monotonic=ManualClock())
    for each in range(KEYS_MAX + 5):
        limit.take(str(each))
    assert len(limit._buckets) == KEYS_MAX
    assert limit.take(str(KEYS_MAX + 4)) == 1

"""Sessions end by idleness, by age, and where there are too many."""

from __future__ import annotations

from halfbridge.web.gate import (
    AGE_S_MAX,
    IDLE_S_MAX,
    SESSIONS_MAX,
    SESSIONS_OF_ONE_MAX,
    Principal,
    Role,
    Sessions,
)
from tests.kit.web import ManualClock

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
    """Each request begins the time anew."""
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
    """Whoever signs in again and again ends the oldest of the same token's sessions only."""
    sessions = Sessions(monotonic=ManualClock())
    alice = sessions.open(ALICE)
    grafana = Principal("grafana", Role.READ, b"another token")
    opened = [sessions.open(grafana) for _ in range(SESSIONS_MAX + 1)]
    assert sessions.find(alice.key) is not None
    assert sum(sessions.find(each.key) is not None for each in opened) == SESSIONS_OF_ONE_MAX
    assert sessions.find(opened[-1].key) is not None


def test_words_are_told_once_and_to_their_session() -> None:
    """What came of a change is shown on the next page of who made it."""
    sessions = Sessions(monotonic=ManualClock())
    one, other = sessions.open(ALICE), sessions.open(ALICE)
    sessions.tell(one, "done")
    assert (sessions.told(other), sessions.told(one), sessions.told(one)) == ("", "done", "")

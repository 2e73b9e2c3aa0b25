"""Any interleaving of drivers, zombies, aborts and responders on one manifest log."""

from __future__ import annotations

from halfbridge.serde.manifest import BatchManifest, ManifestAttempt, ManifestKind
from halfbridge.spark_jobs.sink.manifest import AttemptOutcome, Entry, Found, Search, batch_state
from tests.kit.examples import given, st
from tests.kit.records import A_MANIFEST

BATCHES = 4
# One step: somebody looks for a batch, and appends what it found so many steps later.
STEPS = st.lists(
    st.tuples(
        st.integers(0, BATCHES - 1),  # batch
        st.sampled_from([ManifestKind.COMMIT, ManifestKind.COMMIT, ManifestKind.REJECT]),
        st.lists(st.sampled_from("abcdef"), min_size=1, max_size=2, unique=True),
        st.integers(0, 6),  # steps until it is appended
        st.integers(0, 3),  # append time beyond the oldest half's, in units of 400 ms
        st.sampled_from(["app", "app", "other"]),
    ),
    max_size=30,
)


def search(log: list[Entry], app: str, batch: int) -> Found:
    """Return what a reader finds that reads backwards."""
    reader = Search(batch, start=0, end=len(log))
    reader._records = 1  # windows so small that their borders are met
    while (window := reader.window()) is not None:
        reader.feed([each for each in log[slice(*window)] if each.manifest.app_id == app])
    found = reader.result()
    assert not found.is_cut
    return found


def run(steps: list[tuple[int, ManifestKind, list[str], int, int, str]]) -> list[list[Entry]]:
    """Return the log after each append."""
    log: list[Entry] = []
    logs: list[list[Entry]] = [[]]
    pending: list[tuple[int, BatchManifest, int]] = []
    for now, (batch, kind, attempts, delay, age, app) in enumerate(steps):
        manifest = A_MANIFEST._replace(
            app_id=app,
            batch_id=batch,
            kind=kind,
            searched_from=search(log, app, batch).searched_from,
            attempts=tuple(ManifestAttempt(f"{batch}{each}", ()) for each in attempts),
        )
        pending.append((now + delay, manifest, 400 * age))
        for due in [each for each in pending if each[0] <= now]:
            pending.remove(due)
            log = [*log, Entry(len(log), due[2], due[1])]
            logs.append(log)
    return logs


@given(STEPS)
def test_reading_backwards_finds_what_reading_all_finds(
    steps: list[tuple[int, ManifestKind, list[str], int, int, str]],
) -> None:
    """Any reader finds, at any time, every record of its batch, and no other."""
    for log in run(steps):
        for app in ("app", "other"):
            for batch in range(BATCHES):
                wanted = [
                    each
                    for each in log
                    if (each.manifest.app_id, each.manifest.batch_id) == (app, batch)
                ]
                assert list(search(log, app, batch).entries) == wanted


@given(STEPS)
def test_the_batch_before_is_found_while_there_is_none_to_stand_behind_it(
    steps: list[tuple[int, ManifestKind, list[str], int, int, str]],
) -> None:
    """It may wait for its decisions: a commit settles it first, an abort does not."""
    for log in run(steps):
        commits = {
            each.manifest.batch_id
            for each in log
            if (each.manifest.app_id, each.manifest.kind) == ("app", ManifestKind.COMMIT)
        }
        for batch in set(range(BATCHES)) - commits:
            earlier = max((each for each in commits if each < batch), default=-1)
            assert search(log, "app", batch).earlier_batch == earlier
        for batch in range(BATCHES):
            is_known = not commits.isdisjoint((batch - 1, batch)) or batch == 0
            assert search(log, "app", batch).follows_the_one_before == is_known


@given(STEPS)
def test_a_fate_never_changes(
    steps: list[tuple[int, ManifestKind, list[str], int, int, str]],
) -> None:
    """Once stored, COMMIT and ROLLBACK are final; a batch is published at most once, and whole."""
    said: dict[tuple[int, str], AttemptOutcome] = {}
    for log in run(steps):
        for batch in range(BATCHES):
            stands = batch_state(each for each in log if each.manifest.batch_id == batch)
            for attempt in (f"{batch}{each}" for each in "abcdef"):
                fate = stands.fate(attempt)
                before = said.get((batch, attempt), AttemptOutcome.OPEN)
                assert before in (AttemptOutcome.OPEN, fate)
                said[batch, attempt] = fate
            committed = {
                a for (b, a), fate in said.items() if b == batch and fate is AttemptOutcome.COMMIT
            }
            winner = stands.winner.attempt_ids if stands.winner else frozenset()
            assert committed == winner & {f"{batch}{each}" for each in "abcdef"}

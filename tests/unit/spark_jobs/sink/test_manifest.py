"""First wins: what a batch's records come down to, and how they are found."""

import pytest

from halfbridge.serde.manifest import (
    BatchManifest,
    ManifestAttempt,
    ManifestKind,
    ManifestTransaction,
)
from halfbridge.spark_jobs.sink.manifest import (
    WINDOW_RECORDS,
    WINDOW_RECORDS_MAX,
    AttemptOutcome,
    Entry,
    Rerun,
    Search,
    batch_state,
    compare,
    rounds,
)
from tests.kit.records import A_MANIFEST


def manifest(
    *attempts: str,
    batch: int = 0,
    kind: ManifestKind = ManifestKind.COMMIT,
    searched_from: int = 0,
    rows: int = 1,
    content: str = "aa",
    first: int = 100,
    query: str = "",
    plan: str = "",
) -> BatchManifest:
    """Return a manifest that may live for 1,000 ms."""
    return A_MANIFEST._replace(
        batch_id=batch,
        kind=kind,
        searched_from=searched_from,
        first_append_timestamp=first,
        row_count=rows,
        content_hash=content,
        query_id=query,
        plan_hash=plan,
        attempts=tuple(ManifestAttempt(each, ()) for each in attempts),
    )


def log(*manifests: BatchManifest, at: int = 200) -> list[Entry]:
    """Return entries at offsets 0, 1, ..."""
    return [Entry(offset, at, each) for offset, each in enumerate(manifests)]


def rejecting(*attempts: str) -> BatchManifest:
    """Return a record that gives attempts up."""
    return manifest(*attempts, kind=ManifestKind.REJECT)


def test_the_first_commit_wins() -> None:
    """A second one changes nothing; its attempts are rolled back."""
    stands = batch_state(log(manifest("a", "b"), manifest("c")))
    assert stands.winner is not None
    assert stands.winner.offset == 0
    assert [stands.fate(each) for each in "abc"] == [
        AttemptOutcome.COMMIT,
        AttemptOutcome.COMMIT,
        AttemptOutcome.ROLLBACK,
    ]


def test_nothing_is_known_of_a_batch_without_records() -> None:
    """Nobody has decided: to be asked again."""
    assert batch_state([]).fate("a") is AttemptOutcome.OPEN


def test_a_rejected_attempt_voids_a_later_commit_that_lists_it() -> None:
    """The whole of it, since a batch is published whole; another commit may still win."""
    records = log(rejecting("b"), manifest("a", "b"), manifest("c"))
    assert batch_state(records[:1]).fate("a") is AttemptOutcome.OPEN
    assert batch_state(records[:1]).fate("b") is AttemptOutcome.ROLLBACK
    assert batch_state(records[:2]).winner is None
    assert batch_state(records[:2]).fate("a") is AttemptOutcome.ROLLBACK
    assert batch_state(records).fate("c") is AttemptOutcome.COMMIT


def test_a_rejection_behind_the_winner_is_too_late() -> None:
    """What is published stays published."""
    assert batch_state(log(manifest("a"), rejecting("a"))).fate("a") is AttemptOutcome.COMMIT


def test_a_commit_that_comes_too_late_is_void() -> None:
    """Its half messages may have been given up by then; at the limit it still counts."""
    assert batch_state(log(manifest("a", first=100), at=1_100)).fate("a") is AttemptOutcome.COMMIT
    assert batch_state(log(manifest("a", first=100), at=1_101)).fate("a") is AttemptOutcome.ROLLBACK
    repeated = [*log(manifest("a", first=100), at=1_101), Entry(1, 1_000, manifest("a"))]
    assert batch_state(repeated).winner is None, "an append time that went back revives nothing"


def test_a_batch_without_rows_never_expires() -> None:
    """It has no half messages that could be given up."""
    assert batch_state(log(manifest("a", first=-1, rows=0), at=10**15)).winner is not None


@pytest.mark.parametrize(
    ("mine", "verdict"),
    [
        (manifest("a", "b"), Rerun.OWN),
        (manifest("b", "a"), Rerun.OWN),
        (manifest("c"), Rerun.EQUAL),
        (manifest("a"), Rerun.EQUAL),
        (manifest("c", rows=2), Rerun.DIFFERENT),
        (manifest("c", content="bb"), Rerun.DIFFERENT),
    ],
)
def test_a_batch_run_again_is_compared(mine: BatchManifest, verdict: Rerun) -> None:
    """The same attempts, other attempts with the same rows, or other rows."""
    assert compare(manifest("a", "b"), mine) is verdict


HEARTBEAT = manifest("a", query="q", plan="p")


@pytest.mark.parametrize(
    ("mine", "verdict"),
    [
        (manifest("b", query="q", plan="p"), Rerun.EQUAL),
        (manifest("b", query="r", plan="p"), Rerun.OTHER_QUERY),
        (manifest("b", query="q", plan="o"), Rerun.OTHER_PLAN),
        (manifest("b", query="q"), Rerun.EQUAL),
        (manifest("b", query="q", plan="p", rows=2), Rerun.DIFFERENT),
        (manifest("a", query="q", plan="o"), Rerun.OWN),
    ],
)
def test_equal_rows_of_another_plan_are_other_rows(mine: BatchManifest, verdict: Rerun) -> None:
    """A heartbeat is the same in each batch: after a reset of the checkpoint it is a new one."""
    assert compare(HEARTBEAT, mine) is verdict


def test_the_commits_of_the_batch_before_are_returned() -> None:
    """All of them, for a driver that lost has left one too; not those further back."""
    entries = log(
        manifest("a", batch=3, plan="1"),
        manifest("b", batch=4, plan="2"),
        manifest("c", batch=4, plan="3"),
        manifest("d", batch=3, plan="4"),
    )
    found = searched(entries, 5)[0].result()
    assert {each.plan_hash for each in found.earlier_commits} == {"2", "3"}
    assert found.earlier_batch == 4


def searched(entries: list[Entry], batch: int, *, start: int = 0) -> tuple[Search, int]:
    """Search a log; return the search and how many offsets it read."""
    search = Search(batch, start=start, end=len(entries))
    read = 0
    while (window := search.window()) is not None:
        low, high = window
        read += high - low
        search.feed([each for each in entries[low:high] if each.manifest.app_id == "app"])
    return search, read


def test_a_search_ends_at_the_app_s_newest_record() -> None:
    """A topic of years is not read again for the next batch."""
    entries = log(*(manifest(f"{n}", batch=n, searched_from=n) for n in range(10_000)))
    search, read = searched(entries, 10_000)
    assert (search.result().entries, search.result().searched_from) == ((), 10_000)
    assert read <= WINDOW_RECORDS


def test_a_search_passes_other_apps_in_growing_windows() -> None:
    """Few questions to the broker, however old the app's newest record is."""
    others = [manifest("x", batch=9)._replace(app_id="other")] * 200_000
    entries = log(manifest("a", batch=3), *others)
    search = Search(4, start=0, end=len(entries))
    sizes = []
    while (window := search.window()) is not None:
        sizes.append(window[1] - window[0])
        search.feed([each for each in entries[slice(*window)] if each.manifest.app_id == "app"])
    assert len(sizes) < 10
    assert max(sizes) <= WINDOW_RECORDS_MAX
    assert search.result().searched_from == len(entries)


def test_a_straggler_of_a_stopped_driver_does_not_hide_the_winner() -> None:
    """Its record of batch 1 follows batch 2, and says that its search had not come so far."""
    entries = log(
        manifest("a", batch=0, searched_from=0),
        manifest("b", batch=1, searched_from=1),
        manifest("c", batch=2, searched_from=2),
        manifest("z", batch=1, searched_from=1),
    )
    (found,) = (searched(entries, 2)[0].result(),)
    assert [each.offset for each in found.entries] == [2]
    assert found.searched_from == 2
    first = searched(entries, 1)[0].result()
    assert [each.offset for each in first.entries] == [1, 3]
    assert first.later_batch == 2


@pytest.mark.parametrize("batch", [21, 22])
def test_a_rejection_does_not_hide_the_batch_before(batch: int) -> None:
    """An abort has settled nothing: batches below may still wait for their decisions."""
    others = [manifest("x", batch=9)._replace(app_id="other")] * WINDOW_RECORDS
    aborted = rejecting("b")._replace(batch_id=21, searched_from=1 + len(others))
    entries = log(manifest("a", batch=20), *others, aborted)
    found = searched(entries, batch)[0].result()
    assert found.earlier_batch == 20
    assert [each.batch_id for each in found.counted_commits] == [20]


def test_a_void_commit_says_that_the_batch_before_was_there() -> None:
    """The search ends at what its writer had searched: the record covers everything below."""
    others = [manifest("x", batch=9)._replace(app_id="other")] * WINDOW_RECORDS
    void = manifest("b", batch=21, searched_from=1 + len(others), first=-2_000)
    entries = log(manifest("a", batch=20), *others, void)
    found = searched(entries, 21)[0].result()
    assert (found.state.winner, found.earlier_batch) == (None, -1)
    assert found.follows_the_one_before
    assert found.counted_commits == (void,)


@pytest.mark.parametrize("earlier", [19, None], ids=["one is missing", "nothing is known"])
def test_a_batch_whose_predecessor_is_not_known_follows_none(earlier: int | None) -> None:
    """It may stand under another prefix; and whoever was rejected here had nothing to say of it."""
    known = [] if earlier is None else [manifest("a", batch=earlier)]
    entries = log(*known, rejecting("b")._replace(batch_id=21))
    assert not searched(entries, 21)[0].result().follows_the_one_before


def test_a_log_that_lost_its_beginning_is_reported() -> None:
    """Whether the batch was published cannot be known; a record in time says how far to look."""
    entries = log(*(manifest(f"{n}", batch=n, searched_from=n) for n in range(100)))
    assert searched(entries, 50, start=60)[0].result().is_cut
    assert not searched(entries, 99, start=60)[0].result().is_cut
    assert searched([], 0, start=0)[0].result().is_cut is False


def test_feeding_a_finished_search_is_a_bug() -> None:
    """It is an error, and not skipped."""
    with pytest.raises(ValueError, match="over"):
        Search(0, start=0, end=0).feed([])


def test_no_decision_is_under_way_behind_another_of_its_half_partition() -> None:
    """Rows of one key may be in both: one round has the first, the next one the second."""
    names = ("0a", "0b", "1a", "0c")
    first = [ManifestTransaction(name, int(name[0]), 1, 0) for name in names]
    cut = [
        [each.transaction_id for each in one] for one in rounds([ManifestAttempt("a", (*first,))])
    ]
    assert cut == [["0a", "1a"], ["0b"], ["0c"]]


def test_the_rounds_of_200_tasks_are_those_of_one() -> None:
    """Tasks have no order among each other: a round trip each would take a batch minutes."""
    attempts = [
        ManifestAttempt(
            f"{task}", tuple(ManifestTransaction(f"{task}-{n}", n % 2, 1, 0) for n in range(6))
        )
        for task in range(200)
    ]
    cut = rounds(attempts)
    assert [len(one) for one in cut] == [400, 400, 400]
    for task in range(200):
        order = [each.transaction_id for one in cut for each in one]
        own = [each for each in order if each.startswith(f"{task}-")]
        assert own == [f"{task}-{n}" for n in range(6)]

"""The times of steps: grouped by transaction, and printed as a table."""

from benchmarks.steps import STEPS, table, whole_ways

MS = 1_000_000
WORKER = 6


def test_only_transactions_that_passed_all_steps_count() -> None:
    """One that was not seen, or whose kafka_txn is not committed, would shift the steps."""
    sent = [1, 2, 3]
    taken = list(range(4, 4 + WORKER))
    client = {"whole": sent, "not seen": sent, "not committed": sent, "not taken": sent}
    worker = {"whole": taken, "not seen": taken, "not committed": [4, *(0,) * (WORKER - 1)]}
    reader = {"whole": [10], "not committed": [10], "not taken": [10], "of the warm-up": [10]}
    assert whole_ways(client, worker, reader) == [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]]


def test_each_step_begins_where_the_one_before_ends() -> None:
    """Steps of 1, 2, ... 9 ms come to 45 ms; of two transactions the nearest rank is printed."""
    row = [sum(range(count + 1)) * MS for count in range(len(STEPS) + 1)]
    lines = table([row, row]).splitlines()
    assert lines[0] == "2 transactions"
    for number, (name, line) in enumerate(zip(STEPS, lines[2:], strict=False), start=1):
        assert line.split() == [*name.split(), f"{number:.2f}", f"{number:.2f}"]
    assert lines[-1].split() == ["all", "45.00", "45.00"]

"""The simulator notices planted defects: what it could not notice, it could not promise."""

from __future__ import annotations

import pytest

from tests.simulation.choices import Choices
from tests.simulation.mutation import Mutation
from tests.simulation.mutations import MUTATIONS
from tests.simulation.run import report, run

# A mutation that needs more seeds than this is left to `make simulate`.
SEEDS_QUICK = 300
BROKEN = "BrokenPromiseError: "


def _caught_at(mutation: Mutation) -> int | None:
    """Return the first seed in which a mutation is noticed."""
    with mutation.planted():
        for seed in mutation.numbers:
            choices = Choices(seed)
            failure = run(
                choices,
                delivery=mutation.delivery,
                is_signed=mutation.is_signed,
                is_sent=mutation.is_sent,
            ).failure
            # A defect that the product trips over shows nothing of what the judge can tell.
            assert not failure or failure.startswith(BROKEN), failure
            if failure:
                return seed
    return None


def _with_marks(mutation: Mutation) -> object:
    marks = [pytest.mark.more if mutation.seeds <= SEEDS_QUICK else pytest.mark.long]
    return pytest.param(mutation, id=mutation.name, marks=marks)


@pytest.mark.parametrize("mutation", [_with_marks(mutation) for mutation in MUTATIONS])
def test_every_planted_defect_is_noticed(mutation: Mutation) -> None:
    """Each within its number of seeds."""
    assert _caught_at(mutation) is not None, f"survives {mutation.seeds} seeds: {mutation.name}"


@pytest.mark.more
def test_the_report_of_a_planted_defect_names_the_broken_promise() -> None:
    """The report names the seed, how to run it again, and what happened up to the end."""
    mutation = next(one for one in MUTATIONS if one.name == "gap delivered")
    seed = _caught_at(mutation)
    assert seed is not None
    with mutation.planted():
        text = report(seed)
    assert text.startswith(f"seed {seed}: BrokenPromiseError: ")
    assert f"HALFBRIDGE_SIM_SEED={seed}" in text
    assert " half " in text
    assert "in the database: True" in text
    assert text.splitlines()[-1].startswith("BrokenPromiseError: ")
    assert report(seed) == ""

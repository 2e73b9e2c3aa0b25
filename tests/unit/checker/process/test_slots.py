"""Worker slots: claimed by a lock that dies with its process."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from halfbridge.checker.errors import SlotError
from halfbridge.checker.process.slots import (
    SLOT_CHARS_MAX,
    claim,
    claim_many,
    default_state_dir,
    installation_key,
    slot_ids,
)

KEY = installation_key("")
_CLAIMER = """
import sys
from pathlib import Path
from halfbridge.checker.process.slots import claim
held = claim(Path(sys.argv[1]), installation=sys.argv[2], host="box")
print(held.name, flush=True)
sys.stdin.read()
"""


class Claimer:
    """Another process that holds a slot."""

    def __init__(self, state_dir: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CLAIMER, str(state_dir), KEY],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.name = self.process.stdout.readline().strip()

    def kill(self) -> None:
        """SIGKILL it and wait for its end."""
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def claimers(tmp_path: Path) -> Iterator[list[Claimer]]:
    """Two other processes, each with a slot."""
    both = [Claimer(tmp_path), Claimer(tmp_path)]
    yield both
    for each in both:
        each.kill()


def test_processes_claim_different_slots(tmp_path: Path, claimers: list[Claimer]) -> None:
    """Each process of a machine gets a slot of its own, the first free number."""
    with claim(tmp_path, installation=KEY, host="box") as mine:
        assert [*(each.name for each in claimers), mine.name] == ["box-0", "box-1", "box-2"]


def test_slot_of_a_killed_process_is_free_again(tmp_path: Path, claimers: list[Claimer]) -> None:
    """The system releases the lock of a process that had no chance to."""
    claimers[0].kill()

    with claim(tmp_path, installation=KEY, host="box") as mine:
        assert mine.name == "box-0"


def test_released_slot_is_free_again(tmp_path: Path) -> None:
    """A slot can be claimed again in the same process after its release."""
    with claim(tmp_path, installation=KEY, host="box"):
        pass
    with claim(tmp_path, installation=KEY, host="box") as again:
        assert again.name == "box-0"


def test_installations_do_not_share_slots(tmp_path: Path) -> None:
    """Another prefix counts from 0."""
    other = installation_key("eu.")

    with claim(tmp_path, installation=KEY), claim(tmp_path, installation=other) as second:
        assert second.name.endswith("-0")


def test_claim_many_gives_all_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the slots do not suffice, those claimed so far are freed."""
    monkeypatch.setattr("halfbridge.checker.process.slots.SLOTS_MAX", 2)

    with pytest.raises(SlotError, match="--slot"):
        claim_many(tmp_path, 3, installation=KEY)

    both = claim_many(tmp_path, 2, installation=KEY)
    assert len({each.name for each in both}) == 2
    for each in both:
        each.release()


def test_unusable_directory_says_what_to_give(tmp_path: Path) -> None:
    """The error names the directory and both ways out."""
    (tmp_path / "slots").write_text("a file where a directory should be")

    with pytest.raises(SlotError, match="--state-dir") as caught:
        claim(tmp_path, installation=KEY)

    assert str(tmp_path) in str(caught.value)


def test_ids_are_stable_and_legal() -> None:
    """A slot's ids hold only what Kafka allows, and carry the prefix apart."""
    ids = slot_ids("Box 7/ä", topic_prefix="eu.")

    assert ids == slot_ids("Box 7/ä", topic_prefix="eu.")
    assert ids.group_instance_id == "Box-7"
    assert ids.transactional_id_prefix == "eu.halfbridge-Box-7"


@pytest.mark.parametrize("slot", ["", "///", "x" * (SLOT_CHARS_MAX + 1)])
def test_slot_without_a_legal_form_is_refused(slot: str) -> None:
    """Nothing usable left, or too long, is the operator's error."""
    with pytest.raises(SlotError, match="--slot"):
        slot_ids(slot, topic_prefix="")


def test_state_directory_is_per_user(tmp_path: Path) -> None:
    """XDG first, then the home directory, then the temporary directory with the user's id."""
    assert default_state_dir({"XDG_STATE_HOME": str(tmp_path)}) == tmp_path / "halfbridge"
    home = default_state_dir({"HOME": str(tmp_path)})
    assert home == tmp_path / ".local" / "state" / "halfbridge"
    assert "halfbridge-" in default_state_dir({"HOME": str(tmp_path / "absent")}).name

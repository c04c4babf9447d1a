"""The crash ring finds every bug that is put into the ledger: else its silence means nothing."""

import pytest

from penstock.errors import PenstockError
from tests.harness.ledger_lives import PLOTS
from tests.rings.crash_ring import Ring
from tests.rings.seeded_bugs import SEEDED_BUGS, SeededBug
from tests.rings.test_crash_states import POLICIES

STATES = 6000


def run(bug: SeededBug) -> None:
    for policy, life in bug.lives:
        name = f"{policy}, {life}"
        Ring(name, PLOTS[life], POLICIES[policy], STATES, wrap=bug.wrap).run()


@pytest.mark.parametrize("name", SEEDED_BUGS)
def test_a_seeded_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bug = SEEDED_BUGS[name]
    bug.patch(monkeypatch)
    with pytest.raises(AssertionError) as found:
        run(bug)
    # A broken promise, or a store that does not open; not a mistake of the seeded bug itself.
    assert isinstance(found.value.__cause__, AssertionError | PenstockError), found.value


def test_there_are_bugs_of_every_kind() -> None:
    assert len(SEEDED_BUGS) >= 12


@pytest.mark.long
def test_without_a_bug_the_same_lives_pass() -> None:
    lives = {pair for bug in SEEDED_BUGS.values() for pair in bug.lives}
    run(SeededBug(sorted(lives)))

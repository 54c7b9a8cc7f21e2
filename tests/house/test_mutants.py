"""The table of mutants fits the code: a rule that moved has taken its mutant along."""

from pathlib import Path

import pytest

from tools.mutants import MUTANTS, Mutant
from tools.mutate import broken, nearest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.rule)
def test_a_mutant_can_be_made_and_is_still_python(mutant: Mutant) -> None:
    code = (ROOT / "src" / "holdfast" / mutant.file).read_text(encoding="utf-8")
    changed = broken(mutant, code)
    assert changed != code
    compile(changed, mutant.file, "exec")


def test_each_rule_is_there_once_and_its_tests_exist() -> None:
    rules = [mutant.rule for mutant in MUTANTS]
    assert len(rules) == len(set(rules)) >= 60
    assert all((ROOT / test).exists() for mutant in MUTANTS for test in nearest(mutant))

"""Every mutant still fits the code that it breaks."""

from pathlib import Path

import pytest

from proof.mutation import MUTANTS, Mutant
from proof.mutation.runner import broken, main, nearest, unmakeable

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


def test_one_whose_text_is_not_there_once_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = MUTANTS[0]
    lost, twice = (
        first._replace(text="it is nowhere"),
        first._replace(rule="it is often", text="\n"),
    )
    assert unmakeable([first]) == []
    documented = unmakeable([lost, first, twice, first._replace(file="kernel/nothing.py")])
    assert (
        len(documented) == 3
        and "0 times" in documented[0]
        and first.rule in documented[0]
        and "it is often" in documented[1]
    )
    monkeypatch.setattr("proof.mutation.runner.MUTANTS", [first, lost])
    # Before anything is tried, and when nothing is to be.
    assert main([]) == main(["--list"]) == 2
    assert "these cannot be made:\n" + lost.rule in capsys.readouterr().out
    monkeypatch.setattr("proof.mutation.runner.MUTANTS", [first])
    assert main(["--list"]) == 0 and first.rule in capsys.readouterr().out

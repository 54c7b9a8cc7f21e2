"""Rules of the lock table by themselves: whose a name is, who is a part of whom, and how many may share."""

from collections.abc import Iterator

import pytest

import holdfast
from holdfast.app import Holdfast
from holdfast.primitives.locks import rules
from holdfast.primitives.locks.record import root_of, within


@pytest.fixture
def hf() -> Iterator[Holdfast]:
    with holdfast.connect("memory:") as connected:
        yield connected


@pytest.mark.parametrize(
    ("by", "job", "is_within"),
    [
        ("a", "a", True),
        ("a/b", "a", True),
        ("a/b/c", "a/b", True),
        ("a", "a/b", False),
        ("a/c", "a/b", False),
        ("ab", "a", False),
        ("a/bc", "a/b", False),
        ("b/a", "a", False),
    ],
)
def test_a_part_is_of_its_job_and_of_no_other(by: str, job: str, is_within: bool) -> None:
    assert within(by, job) is is_within


@pytest.mark.parametrize(("by", "root"), [("a", "a"), ("a/b", "a"), ("a/b/c", "a"), ("/a", "/a"), ("/a/b", "/a")])
def test_a_part_of_a_part_is_of_the_first_job(by: str, root: str) -> None:
    assert root_of(by) == root


def test_a_part_has_what_its_job_holds_and_another_part_has_not(hf: Holdfast) -> None:
    hf.locks.acquire("n", by="job")
    assert hf.locks.acquire("n", by="job/one", timeout_s=0).reentered
    hf.locks.acquire("m", by="job/one")
    assert hf.locks.try_acquire("m", by="job/two") is None
    assert hf.locks.try_acquire("m", by="job") is None


def test_a_job_whose_name_begins_like_that_of_another_is_another(hf: Holdfast) -> None:
    hf.locks.acquire("n", by="job")
    assert hf.locks.try_acquire("n", by="job-2") is None


def test_no_more_share_a_name_than_may(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "LOCK_SHARERS_MAX", 2)
    first = hf.locks.acquire("n", by="one", mode="shared")
    hf.locks.acquire("n", by="two", mode="shared")
    assert hf.locks.try_acquire("n", by="three", mode="shared") is None
    first.release()
    assert hf.locks.try_acquire("n", by="three", mode="shared") is not None

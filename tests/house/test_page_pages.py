"""The guide to the page says what there is: every view, key, action and bound; and its pictures are
small.
"""

import re
from pathlib import Path
from typing import get_args

from holdfast.kernel.limits import LIST_MAX, PAGE_JOURNAL_MAX
from holdfast.operations.page.explanation import Verb

ROOT = Path(__file__).parents[2]
ASSETS = ROOT / "src" / "holdfast" / "surfaces" / "http" / "page" / "assets"
GUIDE = (ROOT / "docs" / "page.md").read_text()
PICTURE_BYTES_MAX = 200_000


def _script(name: str) -> str:
    return (ASSETS / name).read_text()


def test_every_view_is_documented_with_its_key() -> None:
    titles = re.findall(r'^  \w+: \{ title: "(\w+)"', _script("page.js"), re.MULTILINE)
    assert re.findall(r"^\| (\w+) \| (\d) \|", GUIDE, re.MULTILINE) == [
        (title, str(key)) for key, title in enumerate(titles, 1)
    ]


def test_every_action_is_documented_with_its_key_and_its_route() -> None:
    ways = re.findall(r"^  (\w+): \(action", _script("actions.js"), re.MULTILINE)
    assert sorted(ways) == sorted(get_args(Verb))
    keys = dict(
        re.findall(r"(\w+): \"(\w)\"", re.findall(r"KEYS = \{(.*?)\}", _script("actions.js"))[0])
    )
    documented = dict(
        re.findall(r"^\| (\w+) \| (\w) \|", GUIDE.partition("## What can be done")[2], re.MULTILINE)
    )
    assert documented == {verb.partition("_")[0].capitalize(): key for verb, key in keys.items()}


def test_the_bounds_that_the_guide_names_are_those_of_the_program() -> None:
    guide = " ".join(GUIDE.split())
    assert f"the last {PAGE_JOURNAL_MAX:,} entries" in guide
    assert f"JOURNAL_MAX = {PAGE_JOURNAL_MAX};" in _script("page.js")
    assert f"A filter looks through the first {LIST_MAX:,}." in guide


def test_the_pictures_are_there_and_small() -> None:
    pictures = re.findall(r"\]\((pictures/page-\w+\.png)\)", GUIDE)
    assert len(pictures) == 3
    assert [
        name for name in pictures if (ROOT / "docs" / name).stat().st_size > PICTURE_BYTES_MAX
    ] == []

"""Settings: their order of precedence, and unknown keys."""

import tomllib
from typing import Any

import pytest
from msgspec.structs import fields

from holdfast.kernel.codec import Plain
from holdfast.kernel.errors import InvalidName, InvalidValue, Misuse
from holdfast.kernel.limits import JOURNAL_KEEP_ENTRIES, JOURNAL_KEEP_S
from holdfast.kernel.settings import ENVIRONMENT, JournalSettings, LockSettings, Settings, resolve

FILE = "/home/me/project/holdfast.toml"
KEYS = sorted(ENVIRONMENT.values())
VARIABLES = {key: name for name, key in ENVIRONMENT.items()}
DEFAULTS: dict[str, Any] = {
    "store": None,
    "namespace": "default",
    "actor": None,
    "host_id": None,
    "group": None,
    "gateway_root": None,
}


def of(
    given: dict[str, str | None] | None = None,
    environment: dict[str, str] | None = None,
    document: dict[str, Any] | None = None,
) -> Settings:
    return resolve(
        given=given or {}, environment=environment or {}, document=document or {}, source=FILE
    )


def test_without_a_word_the_defaults_hold() -> None:
    assert of() == Settings()
    assert {key: getattr(of(), key) for key in KEYS} == DEFAULTS
    assert of().journal == JournalSettings(keep_entries=JOURNAL_KEEP_ENTRIES, keep_s=JOURNAL_KEEP_S)


@pytest.mark.parametrize("key", KEYS)
def test_given_beats_environment_beats_file_beats_default(key: str) -> None:
    given: dict[str, str | None] = {key: "given"}
    environment, document = {VARIABLES[key]: "environment"}, {key: "file"}
    assert getattr(of(given, environment, document), key) == "given"
    assert getattr(of({}, environment, document), key) == "environment"
    assert getattr(of({}, {}, document), key) == "file"
    assert getattr(of(), key) == DEFAULTS[key]


@pytest.mark.parametrize("key", KEYS)
def test_each_key_is_settled_by_itself(key: str) -> None:
    others = {other: f"file-{other}" for other in KEYS}
    settings = of({key: "given"}, {}, others)
    assert {other: getattr(settings, other) for other in KEYS} == {**others, key: "given"}


@pytest.mark.parametrize("nothing", [None, ""])
def test_what_is_given_empty_does_not_speak(nothing: str | None) -> None:
    assert of({"store": nothing}, {"HOLDFAST_STORE": ""}, {"store": "sqlite:x"}).store == "sqlite:x"


def test_other_variables_of_the_environment_are_not_ours() -> None:
    assert of({}, {"PATH": "/bin", "STORE": "x", "holdfast_store": "x"}) == Settings()


def test_every_plain_key_can_be_set_by_the_environment() -> None:
    sections = {
        f.name for f in fields(Settings) if isinstance(f.type, type) and issubclass(f.type, Plain)
    }
    assert set(KEYS) == set(Settings.__struct_fields__) - sections
    assert all(name == f"HOLDFAST_{key.upper()}" for name, key in ENVIRONMENT.items())


def test_the_journals_bounds_come_from_its_table() -> None:
    document = tomllib.loads("[journal]\nkeep_entries = 5\nkeep_s = 60")
    assert of(document=document).journal == JournalSettings(keep_entries=5, keep_s=60.0)


def test_the_terms_of_locks_come_from_their_table() -> None:
    document = tomllib.loads('[locks]\nlease_s = 5\npriority_age_s = 60\njournal = "all"')
    assert of(document=document).locks == LockSettings(
        lease_s=5.0, priority_age_s=60.0, journal="all"
    )


@pytest.mark.parametrize(
    "text",
    ["lease_s = 0.0", "lease_s = -1.0", "lease_s = inf", "priority_age_s = nan"],
)
def test_impossible_terms_of_locks_are_refused_by_name_and_value(text: str) -> None:
    with pytest.raises(InvalidValue, match=f"locks.{text.replace('=', 'is')}: give a positive"):
        of(document=tomllib.loads(f"[locks]\n{text}"))


def test_an_unknown_journal_of_locks_is_refused() -> None:
    with pytest.raises(InvalidValue):
        of(document={"locks": {"journal": "some"}})


@pytest.mark.parametrize(
    ("text", "key"),
    [("strore = 'x'", "strore"), ("[journal]\nkeep = 5", "keep"), ("[jounal]", "jounal")],
)
def test_an_unknown_key_is_named_with_its_file(text: str, key: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        of(document=tomllib.loads(text))
    assert f"`{key}`" in str(caught.value) and FILE in str(caught.value)
    assert caught.value.fields["source"] == FILE


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("store = 5", "store"),
        ("store = 2026-01-01", "store"),
        ("namespace = ['a']", "namespace"),
        ("host_id = true", "host_id"),
        ("journal = 5", "journal"),
        ("[journal]\nkeep_entries = '5'", "keep_entries"),
        ("[journal]\nkeep_entries = 1.5", "keep_entries"),
        ("[journal]\nkeep_entries = true", "keep_entries"),
        ("[journal]\nkeep_s = 'long'", "keep_s"),
        ("[journal]\nkeep_entries = 0", "keep_entries"),
        ("[journal]\nkeep_s = 0", "keep_s"),
        ("[journal]\nkeep_s = -1.0", "keep_s"),
        ("[journal]\nkeep_s = nan", "keep_s"),
        ("[journal]\nkeep_s = inf", "keep_s"),
    ],
)
def test_a_wrong_type_or_value_is_named_with_its_file(text: str, key: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        of(document=tomllib.loads(text))
    assert key in str(caught.value) and FILE in str(caught.value)


@pytest.mark.parametrize("name", ["a b", "../x", "-a", "é", "a" * 129])
def test_a_namespace_must_be_a_name_wherever_it_comes_from(name: str) -> None:
    for spoken in ({"given": {"namespace": name}}, {"environment": {"HOLDFAST_NAMESPACE": name}}):
        with pytest.raises(InvalidName, match="namespace"):
            of(**spoken)  # type: ignore[arg-type]
    with pytest.raises(Misuse, match="namespace"):
        of(document={"namespace": name})


def test_a_mistake_in_the_file_counts_even_if_it_is_overruled() -> None:
    with pytest.raises(Misuse, match="namespace"):
        of({"namespace": "good"}, {}, {"namespace": "a b"})

"""The one error tree, and the status of each error."""

import copy
import pickle
from collections.abc import Iterator

import pytest

from holdfast.kernel import errors
from holdfast.kernel.errors import STATUS, HoldfastError, Misuse, Status, status_of


def tree(root: type[HoldfastError] = HoldfastError) -> Iterator[type[HoldfastError]]:
    yield root
    for kind in root.__subclasses__():
        # A test of another file may have grown a leaf of its own.
        if kind.__module__.startswith("holdfast."):
            yield from tree(kind)


KINDS = sorted(set(tree()), key=lambda kind: kind.__name__)
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


def test_the_tree_is_the_one_drawn_at_the_top_of_its_module() -> None:
    drawn = (errors.__doc__ or "").split("HoldfastError", 1)[1].split("A message says", 1)[0]
    assert {kind.__name__ for kind in KINDS} - {"HoldfastError"} == {
        word for word in drawn.split() if word in vars(errors)
    }


def test_every_code_has_a_row_and_every_row_a_code() -> None:
    assert {kind.code for kind in KINDS} == set(STATUS)


def test_no_two_kinds_share_a_code() -> None:
    assert len({kind.code for kind in KINDS}) == len(KINDS)


@pytest.mark.parametrize(
    ("branch", "exit_status", "exceptions"),
    [
        (
            errors.Refused,
            4,
            {
                errors.NotFound: 1,
                errors.ImpossibleTransition: 1,
                errors.RegistryNotFound: 1,
                errors.AgentEnded: 1,
            },
        ),
        (errors.Lost, 4, {}),
        (errors.Unavailable, 6, {errors.LockTimeout: 5, errors.RegistryLockTimeout: 5}),
        (errors.Corrupt, 7, {}),
        (errors.Misuse, 2, {}),
    ],
)
def test_a_branch_ends_a_command_with_its_status(
    branch: type[HoldfastError], exit_status: int, exceptions: dict[type[HoldfastError], int]
) -> None:
    for kind in tree(branch):
        assert status_of(kind("m")).exit == exceptions.get(kind, exit_status), kind


@every_kind
def test_an_http_status_says_whose_fault_it_is(kind: type[HoldfastError]) -> None:
    fault = 4 if issubclass(kind, errors.Refused | errors.Lost | errors.Misuse) else 5
    assert STATUS[kind.code].http // 100 == fault
    assert isinstance(STATUS[kind.code], Status)


def test_no_error_ends_a_command_as_done_or_as_nothing_to_take() -> None:
    taken = {status.exit for status in STATUS.values()}
    assert not taken & {errors.EXIT_DONE, errors.EXIT_NOTHING_TO_TAKE}


@every_kind
@pytest.mark.parametrize(
    "again",
    [lambda e: pickle.loads(pickle.dumps(e)), copy.copy, copy.deepcopy],
    ids=["pickle", "copy", "deep"],
)
def test_pickling_and_copying_keep_message_code_and_fields(
    kind: type[HoldfastError], again: object
) -> None:
    # `message`, `kind` and `self` are names that a careless signature would trip over.
    fields = {
        "key": "a",
        "holder_pid": 7,
        "message": "m",
        "kind": "k",
        "self": "s",
        "nested": {"x": [1]},
    }
    error = kind("it is held", **fields)
    twin = again(error)  # type: ignore[operator]
    assert type(twin) is kind
    assert (str(twin), twin.message, twin.code, twin.fields) == (
        "it is held",
        "it is held",
        kind.code,
        fields,
    )


@every_kind
def test_only_misuse_and_what_a_registry_does_not_know_are_value_errors(
    kind: type[HoldfastError],
) -> None:
    assert issubclass(kind, ValueError) == issubclass(kind, Misuse | errors.RegistryNotFound)


@every_kind
def test_only_a_wait_that_took_too_long_is_a_timeout_error_and_so_an_os_error(
    kind: type[HoldfastError],
) -> None:
    assert (
        issubclass(kind, TimeoutError)
        == issubclass(kind, OSError)
        == issubclass(kind, errors.LockTimeout)
    )


@every_kind
def test_every_kind_says_what_it_means(kind: type[HoldfastError]) -> None:
    assert kind.__doc__ and kind.__doc__ != (kind.__base__.__doc__ if kind.__base__ else None)


@pytest.mark.parametrize(
    ("kind", "also"),
    [
        (errors.RegistryNotFound, errors.NotFound),
        (errors.RegistryHeld, errors.Held),
        (errors.RegistryCollision, errors.Collision),
        (errors.RegistryDeadlock, errors.DeadlockDetected),
        (errors.RegistryLost, errors.LeaseLost),
        (errors.RegistryLockTimeout, errors.LockTimeout),
        (errors.RegistryCorruption, errors.StoreCorrupt),
        (errors.RegistryUnavailable, errors.StoreUnavailable),
    ],
)
def test_a_registry_error_is_also_one_of_the_tree(
    kind: type[HoldfastError], also: type[HoldfastError]
) -> None:
    error = kind("m")
    assert isinstance(error, errors.RegistryError) and isinstance(error, also)
    assert status_of(error) == STATUS[also.code]

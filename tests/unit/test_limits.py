"""The bounds agree with each other: what one lets pass, no other stops."""

from holdfast.kernel import limits
from holdfast.kernel.names import check_id, check_label
from holdfast.kernel.order import encode


def test_every_bound_is_a_positive_number_with_a_reason_to_be() -> None:
    bounds = {name: value for name, value in vars(limits).items() if name.isupper()}
    assert bounds and all(value > 0 for value in bounds.values())


def test_the_longest_label_and_the_longest_id_fit_into_a_key() -> None:
    label, name = (
        check_label("\U0010ffff" * limits.LABEL_CHARS_MAX),
        check_id("a" * limits.ID_CHARS_MAX),
    )
    assert len(label.encode()) <= limits.KEY_BYTES_MAX
    assert len(name.encode()) <= limits.KEY_BYTES_MAX


def test_the_longest_label_and_a_few_numbers_fit_into_an_index() -> None:
    label = check_label("\U0010ffff" * limits.LABEL_CHARS_MAX)
    assert len(encode((label, 1, 2, 3, True))) <= limits.INDEX_BYTES_MAX


def test_an_entry_is_smaller_than_a_record_and_a_read_than_what_is_kept() -> None:
    assert limits.ENTRY_BYTES_MAX <= limits.RECORD_BYTES_MAX
    assert limits.JOURNAL_READ_MAX <= limits.JOURNAL_KEEP_ENTRIES


def test_a_waiter_looks_again_before_a_transaction_gives_up() -> None:
    assert limits.WAIT_RECHECK_S < limits.TRANSACT_TIMEOUT_S

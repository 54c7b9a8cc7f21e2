"""Assertions about the code and fields of an error."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from holdfast.kernel.errors import HoldfastError


@contextmanager
def raises(
    kind: type[HoldfastError], **fields: Any
) -> "Iterator[pytest.ExceptionInfo[HoldfastError]]":
    """The block must raise an error of this kind, with its code and at least these fields. Its
    wording may change.
    """
    with pytest.raises(kind) as caught:
        yield caught
    error = caught.value
    assert error.code == kind.code, f"{error!r} instead of {kind.code}"
    found = {name: error.fields.get(name) for name in fields}
    assert found == fields, f"{found} instead of {fields} in {error!r}"

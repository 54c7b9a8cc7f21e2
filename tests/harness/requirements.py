"""What a test cannot do without: a skip by name on a machine that lacks it, and a failure where
CI=true.
"""

import os
from typing import NoReturn

import pytest


def lacking(reason: str) -> NoReturn:
    """End a test that cannot be made here, saying why."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)

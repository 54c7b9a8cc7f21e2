"""The one form of an address, in which addresses are compared."""

import random
from ipaddress import ip_interface

import pytest

from holdfast.domains.network.address import normal_ip, normal_mac
from holdfast.kernel.errors import InvalidValue


def test_a_plain_v4_address_is_what_the_standard_library_says() -> None:
    dice, valid = random.Random(1), 0
    numbers = ["0", "1", "9", "10", "99", "100", "199", "200", "249", "255", "256", "01", "1000"]
    ends = [
        "",
        "",
        "/",
        "/0",
        "/8",
        "/32",
        "/33",
        "/05",
        "/255.0.0.0",
        "\n",
        " ",
        "/1\n",
        ".",
        "/٣",
    ]
    for _ in range(5000):
        chosen = dice.choices(numbers, k=dice.choice([3, 4, 4, 4, 4, 4, 5]))
        text = ".".join(chosen) + dice.choice(ends)
        try:
            expected = str(ip_interface(text).ip)
        except ValueError:
            with pytest.raises(InvalidValue):
                normal_ip(text)
        else:
            valid += 1
            assert normal_ip(text) == expected
    assert valid > 500


@pytest.mark.parametrize(
    "text", ["02:0A:0b:00:00:01", "02-0A-0b-00-00-01", "020A.0b00.0001", "020A0b000001"]
)
def test_a_mac_has_one_form(text: str) -> None:
    assert normal_mac(text) == "02:0a:0b:00:00:01"

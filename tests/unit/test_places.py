"""What lies beside a store."""

from pathlib import Path

import pytest

from holdfast.kernel.errors import StoreUnavailable
from holdfast.kernel.settings import Settings
from holdfast.places import gateway_root, gateways_here


def test_the_gateways_of_this_machine_are_known_by_their_folders(tmp_path: Path) -> None:
    settings = Settings(gateway_root=str(tmp_path))
    assert gateways_here(settings) == []
    for agent in ("gpu", "another"):
        gateway_root(settings, agent).mkdir(parents=True)
    (gateway_root(settings, "gpu").parent / "a-file").touch()
    assert gateways_here(settings) == ["another", "gpu"]
    assert gateways_here(Settings(gateway_root=str(tmp_path), namespace="other")) == []


def test_a_folder_of_gateways_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "default").touch()
    with pytest.raises(StoreUnavailable, match="folder of the gateways"):
        gateways_here(Settings(gateway_root=str(tmp_path)))

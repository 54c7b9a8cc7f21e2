"""What lies beside a store."""

from pathlib import Path

import pytest

from holdfast.kernel.errors import EnvironmentUnavailable
from holdfast.kernel.settings import Settings
from holdfast.runtime.configuration import gateway_root, gateways_here


def test_the_gateways_of_this_machine_are_known_by_their_folders(tmp_path: Path) -> None:
    settings = Settings(gateway_root=str(tmp_path))
    assert gateways_here(settings) == []
    for agent in ("gpu", "another"):
        gateway_root(settings, agent).mkdir(parents=True)
    (gateway_root(settings, "gpu").parent / "a-file").touch()
    assert gateways_here(settings) == ["another", "gpu"]
    assert gateways_here(Settings(gateway_root=str(tmp_path), namespace="other")) == []


def test_a_gateway_folder_that_is_no_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "default").touch()
    with pytest.raises(EnvironmentUnavailable, match="folder of the gateways"):
        gateways_here(Settings(gateway_root=str(tmp_path)))


def test_stores_do_not_share_the_gateways_of_agents_that_have_one_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt for the agent of one project reached the other's."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "link").symlink_to(tmp_path)
    urls = [
        f"sqlite:{tmp_path}/a.sqlite",
        f"sqlite:{tmp_path}/b.sqlite",
        f"files:{tmp_path}/a",
        f"files:{tmp_path}/b",
        "postgresql://me@db/one",
        "postgresql://me@db/two",
        "memory:",
    ]
    assert len({gateway_root(Settings(store=url), "gpu") for url in urls}) == len(urls)
    for kind in ("sqlite", "files"):
        same = {
            gateway_root(Settings(store=f"{kind}:{folder}/a"), "gpu")
            for folder in (tmp_path, tmp_path / "link")
        }
        assert len(same) == 1

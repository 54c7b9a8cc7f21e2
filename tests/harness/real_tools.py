"""The real tools, as npm installs them, and a home of their own that makes them use the model
endpoint of a test.
"""

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.harness.model_endpoint import ModelEndpoint

FOLDER = Path(__file__).parents[2] / ".agents"
"""Where `tools/agent-tools` installs them; HOLDFAST_TEST_TOOLS names another folder."""


def tools_folder() -> Path:
    """The folder of their programs."""
    return Path(os.environ.get("HOLDFAST_TEST_TOOLS") or FOLDER) / "node_modules" / ".bin"


def need_tool(name: str) -> str:
    """The path of a tool. Skips the test where it is not installed, by name."""
    path = tools_folder() / name
    if not path.exists():
        pytest.skip(f"{name} is not installed: run tools/agent-tools")
    return str(path)


def tool_environment(home: Path, endpoint: ModelEndpoint) -> dict[str, str]:
    """The environment of a tool that uses the endpoint, with its settings in `home`."""
    carried = {name: os.environ[name] for name in ("LANG", "TERM", "TMPDIR") if name in os.environ}
    return {
        **carried,
        "PATH": f"{tools_folder()}:{os.environ['PATH']}",
        "HOME": str(home),
        "ANTHROPIC_BASE_URL": endpoint.url,
        "ANTHROPIC_API_KEY": "sk-test",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_RETRIES": "1",
        "DISABLE_AUTOUPDATER": "1",
        "LOCAL_KEY": "test",
        "GEMINI_API_KEY": "test",
        "GOOGLE_GEMINI_BASE_URL": endpoint.url,
    }


def prepare_home(home: Path, project: Path, endpoint: ModelEndpoint, *, trust: bool = True) -> None:
    """Write the tools' settings: no first-run dialogs, and the endpoint as their only model. With
    `trust`, they trust the project.
    """
    for folder in (".claude", ".codex", ".config/opencode", ".gemini"):
        (home / folder).mkdir(parents=True, exist_ok=True)
    project.mkdir(parents=True, exist_ok=True)
    claude = {
        "hasCompletedOnboarding": True,
        "theme": "dark",
        "customApiKeyResponses": {"approved": ["sk-test"], "rejected": []},
        "projects": {str(project): {"hasTrustDialogAccepted": trust}},
    }
    (home / ".claude.json").write_text(json.dumps(claude))
    trusted = f'[projects."{project}"]\ntrust_level = "trusted"\n' if trust else ""
    (home / ".codex/config.toml").write_text(
        f"""model = "gpt-5.2-codex"
model_provider = "local"
check_for_update_on_startup = false
[model_providers.local]
name = "local"
base_url = "{endpoint.url}/v1"
env_key = "LOCAL_KEY"
wire_api = "responses"
supports_websockets = false
request_max_retries = 0
stream_max_retries = 0
{trusted}"""
    )
    models = {"models": {"test": {"name": "test"}}}
    options = {"baseURL": f"{endpoint.url}/v1", "apiKey": "test"}
    local = {"npm": "@ai-sdk/openai-compatible", "name": "local", "options": options, **models}
    opencode = {
        "$schema": "https://opencode.ai/config.json",
        "autoupdate": False,
        "model": "local/test",
        "small_model": "local/test",
        "permission": {"bash": "ask"},
        "provider": {"local": local},
    }
    (home / ".config/opencode/opencode.json").write_text(json.dumps(opencode))
    gemini = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "general": {"disableAutoUpdate": True, "disableUpdateNag": True},
        "privacy": {"usageStatisticsEnabled": False},
        # A fixed model: it would ask another one which to take.
        "model": {"name": "gemini-2.5-flash"},
    }
    (home / ".gemini/settings.json").write_text(json.dumps(gemini))
    folders = {str(project): "TRUST_FOLDER"} if trust else {}
    (home / ".gemini/trustedFolders.json").write_text(json.dumps(folders))


def installed(name: str) -> bool:
    """Is a tool installed, for tests that choose among several?"""
    return shutil.which(name, path=str(tools_folder())) is not None

"""The plugin by which opencode reports what it does, for one run of it.

opencode takes settings from an environment variable too, and adds them to those of the user's
files: so nothing is written there. The plugin hides the variable from what opencode starts.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.adapters.tools.hook_command import report_words
from holdfast.kernel.errors import InvalidValue

CONFIG_VARIABLE = "OPENCODE_CONFIG_CONTENT"
OWN_CONFIG_VARIABLE = "HOLDFAST_OPENCODE_CONFIG"
"""The user's own value of it, which the plugin gives back."""
_PLUGIN = Path(__file__).with_name("opencode_plugin.js")


def environment_with_plugin(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """What is added to an environment so that opencode has the plugin, which reports into `folder`.
    Raises InvalidValue when the user has settings in the same variable that cannot be read.
    """
    own = environment.get(CONFIG_VARIABLE) or ""
    try:
        settings: dict[str, Any] = json.loads(own or "{}")
        plugins = [*settings.get("plugin", [])]
    except (ValueError, AttributeError, TypeError) as error:
        raise InvalidValue(
            f"{CONFIG_VARIABLE} is no JSON that a plugin can be added to: {error}",
            field="environment",
        ) from None
    options = {"report": report_words(folder, "")[:-1]}
    settings["plugin"] = [*plugins, [_PLUGIN.as_uri(), options]]
    added = {CONFIG_VARIABLE: json.dumps(settings)}
    return {**added, OWN_CONFIG_VARIABLE: own} if own else added

"""An operator who answers the questions of an agent."""

import json
from pathlib import Path

import msgspec

from holdfast.adapters.tool_report import reply_document
from holdfast.domains.gateway.activity import Activity
from tests.real_agents.tool_rig import AGENT, ToolRig


def operator_answers(rig: ToolRig, question_id: str, reply: str) -> None:
    """Give the hook that asked what the gateway would give it."""
    manifest = json.loads(
        Path(rig.hf.agents.resolve(AGENT).unwrap().runtime.manifest_path).read_text()
    )
    folder = Path(manifest["adapter"]["reports"])
    counted = json.loads((folder / "activity.json").read_text())
    activity = msgspec.convert(counted["activity"], Activity)
    [asked] = [one for one in activity.asked if one.question.question_id == question_id]
    (folder / asked.reply_to).write_bytes(reply_document(asked.call, asked.question, reply))

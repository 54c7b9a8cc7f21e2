"""Record a session with the real Claude Code: `make record` writes docs/recording.md and its
picture. Agent, tmux, gateways, page and processes are real; the model behind the agent is that of
the tests, so that the answers are always the same.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from playwright.sync_api import Browser

from tests.harness.timeouts import until
from tests.real_agents.tool_rig import SESSION, ToolRig, tool_rig
from tests.surfaces.browser import chromium, running
from tests.surfaces.command import ENTRY

DOCS = Path(__file__).parents[1] / "docs"
PICTURE = "pictures/page-question.png"
_HEAD = """# A session with Claude Code

Recorded by `make record`, with the real Claude Code, a real tmux and the real page. Only the model
is a stand-in: it answers `p-1` with `answered p-1`, and runs what stands in `[[tool ...]]`.
[Agents](agents.md) explains the commands.
"""


class Recording:
    """The session, as Markdown."""

    def __init__(self, rig: ToolRig) -> None:
        self._rig = rig
        self._parts = [_HEAD]

    def say(self, text: str) -> None:
        self._parts.append(f"{text}\n")

    def run(self, command: str) -> str:
        """Run a command at a terminal, and record it with what it prints."""
        drawn = self._rig.on_a_terminal(*shlex.split(command)[1:], columns=100)
        said = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|[^\n]*\r", "", drawn)
        said = "\n".join(line.rstrip() for line in said.splitlines()).rstrip()
        self._parts.append(f"```text\n$ {command}\n{self._plain(said)}\n```\n")
        return said

    def screen(self) -> None:
        """Record what the agent's pane shows."""
        lines = [line.rstrip() for line in self._rig.screen().splitlines() if line.strip()]
        shown = "\n".join(re.sub("([─╌])\\1{60,}", r"\1" * 60, line) for line in lines)
        shown = re.sub(" {40,}", "    ", shown)
        self._parts.append(f"```text\n{self._plain(shown)}\n```\n")

    def text(self) -> str:
        return "\n".join(self._parts)

    def _plain(self, text: str) -> str:
        """Without the paths of this machine."""
        return text.replace(str(self._rig.project), "~/project").replace(str(self._rig.home), "~")


def record(rig: ToolRig, browser: Browser) -> str:
    """The whole session."""
    made = Recording(rig)
    with ExitStack() as opened:
        page_link = serve(rig, opened)
        made.say("## Start\n\nThe process that hosts gateways runs already: `holdfast serve`.")
        made.run("holdfast agents start gpu --gateway -- claude")
        rig.until_state("ready")
        made.run("holdfast agents list")
        made.say("## A prompt, and its answer")
        made.run("holdfast gateway prompt gpu 'sort the list, p-1' --wait")
        made.say("## A question, answered on the page")
        made.run("holdfast gateway prompt gpu 'flash the board, p-2 [[tool touch flashed]]'")
        rig.until_state("asking")
        rig.until_shown("Do you want to proceed")
        made.run("holdfast gateway questions")
        made.say("Claude Code shows its own dialog all the while. No key is sent to it:")
        made.screen()
        answer_on_page(browser, page_link, DOCS / PICTURE)
        made.say(f"On the page, somebody presses Allow:\n\n![The question on the page]({PICTURE})")
        until((rig.project / "flashed").exists)
        rig.until_state("ready")
        made.run("holdfast gateway requests gpu")
        made.say("## Killed, and started again with its conversation")
        os.kill(rig.pid(), signal.SIGKILL)
        until(lambda: SESSION not in rig.tmux.sessions())
        made.say("Somebody ends Claude Code with `kill -9`:")
        made.run("holdfast agents list --all")
        made.run("holdfast agents restart gpu")
        rig.until_state("ready")
        made.run("holdfast gateway prompt gpu 'go on, p-3' --wait")
        made.say("The new one has the old conversation on its screen:")
        made.screen()
        made.run("holdfast agents stop gpu")
    return made.text()


def serve(rig: ToolRig, opened: ExitStack) -> str:
    """Start `holdfast serve`; return the link to its page."""
    server = subprocess.Popen(
        [*ENTRY, "serve", "--json", "--port", "0"],
        env=rig.environment,
        cwd=rig.folder,
        stdout=subprocess.PIPE,
        text=True,
    )

    def end() -> None:
        server.send_signal(signal.SIGTERM)
        server.wait(30)

    opened.callback(end)
    assert server.stdout is not None
    link: str = json.loads(server.stdout.readline())["link"]
    return link


def answer_on_page(browser: Browser, link: str, picture: Path) -> None:
    """Allow the one question there is, by the button of the page."""
    context = browser.new_context(
        viewport={"width": 1180, "height": 620}, reduced_motion="reduce", locale="en-GB"
    )
    page = context.new_page()
    page.goto(link)
    page.wait_for_selector("body[data-ready=now]")
    page.keyboard.press("2")
    page.locator(".row", has_text="gpu").first.click()
    panel = page.locator("#panel")
    panel.get_by_role("button", name="Allow").wait_for()
    page.screenshot(path=picture)
    panel.get_by_role("button", name="Allow").click()
    page.locator("dialog").get_by_role("button", name="Allow").click()
    page.locator("dialog").wait_for(state="detached")
    context.close()


def main() -> None:
    """Write the recording."""
    if chromium() is None:
        sys.exit("no chromium: install it, or leave the recording as it is")
    with tempfile.TemporaryDirectory() as folder, running() as browser:
        with tool_rig(Path(folder), "claude") as rig:
            (DOCS / "recording.md").write_text(record(rig, browser))
    print(f"written: {shlex.quote(str(DOCS / 'recording.md'))}")


if __name__ == "__main__":
    main()

"""Draw the pictures of the docs: `make docs`. Plain SVG, readable in light and dark."""

from html import escape
from pathlib import Path

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"

STYLE = """
  text { font: 14px system-ui, sans-serif; fill: #1d2530 }
  .small { font-size: 12px; fill: #4a5766 }
  .name { font-weight: 600 }
  .ground { fill: #ffffff }
  .room { fill: #eef3f8; stroke: #7d93ab; rx: 6 }
  .core { fill: #dfeadf; stroke: #7a9a7a; rx: 6 }
  .way { stroke: #4a5766; fill: none; marker-end: url(#tip) }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6ebf1 } .small { fill: #aab6c3 } .ground { fill: #14181d }
    .room { fill: #222c37; stroke: #5e748c } .core { fill: #243226; stroke: #5f7f5f } .way { stroke: #aab6c3 }
  }
"""


def box(x: int, y: int, width: int, height: int, name: str, words: str, kind: str = "room") -> str:
    """A room with its name and what it holds, a line each."""
    lines = "".join(
        f'<text class="small" x="{x + 12}" y="{y + 42 + 17 * number}">{escape(line)}</text>'
        for number, line in enumerate(words.split("\n"))
    )
    return (
        f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}"/>'
        f'<text class="name" x="{x + 12}" y="{y + 22}">{escape(name)}</text>{lines}'
    )


def way(points: str) -> str:
    """An arrow."""
    return f'<path class="way" d="{points}"/>'


def picture(width: int, height: int, title: str, *parts: str) -> str:
    """A whole picture."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">'
        f"<style>{STYLE}</style>"
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="#7d93ab"/></marker></defs>'
        f'<rect class="ground" width="{width}" height="{height}"/>{"".join(parts)}</svg>\n'
    )


def architecture() -> str:
    """The house: who may import whom."""
    return picture(
        760,
        520,
        "The layers of Holdfast: surfaces, app, stores, adapters and views, domains, primitives, kernel",
        box(20, 20, 720, 66, "surfaces", "command line · HTTP and the page · MCP: parse, call one domain method, render"),
        box(20, 106, 720, 66, "app", "connect(): wires a store, a clock, adapters and domains together"),
        box(20, 192, 226, 84, "stores", "memory · sqlite · postgres\nhow bytes are kept and woken for"),
        box(266, 192, 226, 84, "adapters", "procfs, and later tmux, mqtt, ...\none file a product"),
        box(512, 192, 228, 84, "views", "read-only pictures\nacross domains"),
        box(266, 296, 474, 66, "domains", "jobs, and later agents · gateway · network · workflows: never meet"),
        box(266, 382, 474, 60, "primitives", "journal, and later locks · holds · queue", "core"),
        box(20, 462, 720, 48, "kernel", "", "core"),
        '<text class="small" x="92" y="484">'
        "names · holder · lease · token · codec · errors · limits · settings · the store port</text>",
        way("M380 86 L380 104"),
        way("M133 172 L133 190"),
        way("M379 172 L379 190"),
        way("M626 172 L626 190"),
        way("M133 276 L133 460"),
        way("M379 276 L379 294"),
        way("M626 276 L626 294"),
        way("M503 362 L503 380"),
        way("M503 442 L503 460"),
    )


def group_commit() -> str:
    """How a durable change reaches the disk in SQLite."""
    steps = [
        (20, "gate", "one writer\nat a time"),
        (166, "body", "check, act,\njournal entry"),
        (312, "COMMIT", "into the log,\nnot yet synced"),
        (458, "next one in", "gate open,\nwaiters woken"),
        (604, "fdatasync", "one call covers all\nframes before it"),
    ]
    return picture(
        760,
        150,
        "A durable change: gate, body, commit, next writer in, fdatasync, acknowledged",
        *(box(x, 20, 130, 84, name, words, "core" if name == "fdatasync" else "room") for x, name, words in steps),
        *(way(f"M{x + 130} 62 L{x + 144} 62") for x, _, _ in steps[:-1]),
        '<text class="small" x="604" y="128">then it is acknowledged</text>',
    )


def main() -> None:
    """Write all pictures."""
    PICTURES.mkdir(exist_ok=True)
    (PICTURES / "architecture.svg").write_text(architecture())
    (PICTURES / "group-commit.svg").write_text(group_commit())


if __name__ == "__main__":
    main()

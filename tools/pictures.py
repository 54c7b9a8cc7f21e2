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
  .told { fill: #f8e6e2; stroke: #b3614f; rx: 6 }
  .way { stroke: #4a5766; fill: none; marker-end: url(#tip) }
  .wait { stroke-dasharray: 5 4 }
  .never { stroke: #b3614f }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6ebf1 } .small { fill: #aab6c3 } .ground { fill: #14181d }
    .room { fill: #222c37; stroke: #5e748c } .core { fill: #243226; stroke: #5f7f5f } .way { stroke: #aab6c3 }
    .told { fill: #3a2420; stroke: #a8604f } .never { stroke: #c9796a }
  }
"""


def box(x: int, y: int, width: int, height: int, name: str, words: str, kind: str = "room") -> str:
    """A box with its name and its contents, one line each."""
    lines = "".join(
        f'<text class="small" x="{x + 12}" y="{y + 42 + 17 * number}">{escape(line)}</text>'
        for number, line in enumerate(words.split("\n"))
    )
    return (
        f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}"/>'
        f'<text class="name" x="{x + 12}" y="{y + 22}">{escape(name)}</text>{lines}'
    )


def bar(x: int, y: int, width: int, words: str, kind: str = "room") -> str:
    """A span of time in a lane."""
    return f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="34"/>' + says(
        x + 10, y + 22, words
    )


def says(x: int, y: int, words: str, kind: str = "small", anchor: str = "start") -> str:
    """Words at a place, a line each."""
    return "".join(
        f'<text class="{kind}" x="{x}" y="{y + 17 * number}" '
        f'text-anchor="{anchor}">{escape(line)}</text>'
        for number, line in enumerate(words.split("\n"))
    )


def way(points: str, kind: str = "") -> str:
    """An arrow."""
    return (
        f'<path class="way {kind}" d="{points}"/>' if kind else f'<path class="way" d="{points}"/>'
    )


def picture(width: int, height: int, title: str, *parts: str) -> str:
    """A whole picture."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(title)}">'
        f"<style>{STYLE}</style>"
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
        'markerHeight="8" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="#7d93ab"/></marker></defs>'
        f'<rect class="ground" width="{width}" height="{height}"/>{"".join(parts)}</svg>\n'
    )


def architecture() -> str:
    """The layers: who may import whom."""
    return picture(
        760,
        600,
        "The layers of Holdfast: surfaces, operations, runtime, stores and adapters, processes and "
        "system, domains, primitives, kernel",
        box(20, 20, 720, 56, "surfaces", "command line · HTTP and page · MCP: parse, render"),
        box(20, 96, 720, 56, "operations", "every operation once: request, result, handler"),
        box(20, 172, 720, 56, "runtime", "connect(): wires stores, adapters and domains"),
        box(20, 248, 350, 66, "stores", "memory · sqlite · files · postgres"),
        box(390, 248, 350, 66, "adapters", "tmux · mqtt · HTTP ...: one module a product"),
        box(20, 334, 720, 56, "processes · system", "process trees; safe access to files"),
        box(20, 410, 720, 56, "domains", "agents · gateway · jobs · network · workflows"),
        box(20, 486, 720, 40, "primitives", "", "core"),
        '<text class="small" x="140" y="506">journal · locks · holds · queue · renewal</text>',
        box(20, 546, 720, 40, "kernel", "", "core"),
        '<text class="small" x="92" y="566">'
        "names · holder · lease · token · codec · errors · limits · settings · the store "
        "port</text>",
        *(way(f"M380 {y} L380 {y + 18}") for y in (76, 152, 390, 466, 526)),
        *(way(f"M{x} {y} L{x} {y + 18}") for x in (195, 565) for y in (228, 314)),
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
        *(
            box(x, 20, 130, 84, name, words, "core" if name == "fdatasync" else "room")
            for x, name, words in steps
        ),
        *(way(f"M{x + 130} 62 L{x + 144} 62") for x, _, _ in steps[:-1]),
        '<text class="small" x="604" y="128">then it is acknowledged</text>',
    )


def hand_over() -> str:
    """A release chooses the next holder and wakes only that one."""
    return picture(
        760,
        262,
        "Hand-over: the release of job-1 makes job-2 the holder in its own transaction and wakes "
        "it; job-3 sleeps on",
        says(20, 42, "job-1", "name"),
        says(20, 152, "job-2", "name"),
        says(20, 208, "job-3", "name"),
        bar(90, 20, 210, "holds router-1", "core"),
        box(
            316,
            20,
            210,
            90,
            "release",
            "one transaction:\njob-1 out, job-2 in;\njob-3 is first in line now",
        ),
        bar(90, 130, 436, "asleep, first in line"),
        bar(550, 130, 190, "holds router-1", "core"),
        bar(90, 186, 650, "asleep, second in line; wakes when it is its turn, or when job-2 dies"),
        way("M300 37 L314 37"),
        way("M526 65 L570 65 L570 128"),
        says(580, 86, "one wake-up,\nafter the commit"),
        says(
            90,
            244,
            "There is no moment at which router-1 is free, so no third job can take it in between.",
        ),
    )


def backfill() -> str:
    """Small requests overtake a set that cannot go yet, a bounded number of times."""
    small = [(160, "job-3"), (240, "job-4"), (320, "job-5"), (400, "job-6")]
    return picture(
        760,
        262,
        "Backfill: while a set waits for router-1, four later requests for router-2 pass it; the "
        "fifth waits behind it",
        says(20, 42, "router-1", "name"),
        says(20, 98, "router-2", "name"),
        bar(100, 20, 480, "job-1 holds it", "core"),
        *(bar(x, 76, 72, by, "core") for x, by in small),
        says(484, 98, "kept for job-2"),
        '<rect class="core" x="588" y="20" width="152" height="90"/>',
        says(664, 70, "job-2 has both", anchor="middle"),
        way("M148 160 L148 112", "wait"),
        way("M148 110 L148 56", "wait"),
        says(100, 178, "job-2 asks for both,\nand waits for router-1"),
        way("M520 160 L520 112", "wait"),
        says(
            400,
            178,
            "job-7 asks for router-2. Four later ones have\npassed job-2 by now, so it waits "
            "behind it",
        ),
        says(
            100,
            230,
            "Without the bound, small requests could keep job-2 waiting for ever.\n"
            "Without backfill, router-2 would stand idle.",
        ),
    )


def deadlock() -> str:
    """A cycle of holds, and the job that gets the error."""
    return picture(
        760,
        286,
        "A deadlock: job-1 holds router-1 and waits for router-2; job-2 holds router-2 and asks "
        "for router-1, and gets the error",
        box(30, 106, 170, 66, "job-1", "came first, still waits"),
        box(305, 20, 150, 48, "router-2", "", "core"),
        box(305, 210, 150, 48, "router-1", "", "core"),
        box(560, 106, 170, 66, "job-2", "the youngest: refused", "told"),
        way("M115 104 L115 44 L303 44", "wait"),
        says(130, 36, "waits for"),
        way("M455 44 L645 44 L645 104"),
        says(556, 36, "held by"),
        way("M645 172 L645 234 L457 234", "wait never"),
        says(556, 254, "asks for"),
        way("M305 234 L115 234 L115 174"),
        says(130, 254, "held by"),
        says(
            380,
            126,
            "DeadlockDetected, at once: its\nmessage names the cycle, and\njob-2 still holds "
            "router-2",
            anchor="middle",
        ),
    )


def false_cycle() -> str:
    """A cycle that contains a place in a queue, which is no deadlock."""
    return picture(
        760,
        286,
        "A false cycle: job-2 waits for a set that job-1 holds a part of; job-1 asks for the free "
        "rest and passes job-2",
        box(30, 106, 170, 66, "job-1", "asks for router-2 as well", "core"),
        box(305, 16, 150, 56, "router-2", "free"),
        box(305, 210, 150, 48, "router-1", "", "core"),
        box(560, 106, 170, 66, "job-2", "wants both, so it waits"),
        way("M115 104 L115 44 L303 44"),
        says(130, 36, "asks for"),
        way("M645 104 L645 44 L457 44", "wait"),
        says(556, 36, "first in line"),
        way("M645 172 L645 234 L457 234", "wait"),
        says(556, 254, "waits for"),
        way("M305 234 L115 234 L115 174"),
        says(130, 254, "held by"),
        way("M200 125 L558 125", "wait never"),
        says(
            380,
            146,
            "to wait behind job-2, which waits for job-1,\nwould be a wait for itself: so job-1 "
            "passes,\n"
            "and gets router-2 at once",
            anchor="middle",
        ),
    )


DRAWN = {
    "architecture": architecture,
    "group-commit": group_commit,
    "locks-hand-over": hand_over,
    "locks-backfill": backfill,
    "locks-deadlock": deadlock,
    "locks-false-cycle": false_cycle,
}


def main() -> None:
    """Write all pictures."""
    PICTURES.mkdir(exist_ok=True)
    for name, draw in DRAWN.items():
        (PICTURES / f"{name}.svg").write_text(draw())


if __name__ == "__main__":
    main()

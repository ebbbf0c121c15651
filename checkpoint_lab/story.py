"""A run as text: one line per moment, and a space-time diagram in characters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from checkpoint_lab.world import Moment

SIGNS = {
    "read": "r",
    "send": "s",
    "receive": "v",
    "deliver": "d",
    "replay": "p",
    "drop": "x",
    "lose": "?",
    "capture": "O",
    "stored": "w",
    "failed": "!",
    "torn": "!",
    "lost": "!",
    "timer": "t",
    "crash": "X",
    "restore": "R",
    "recover": "|",
    "complete": "C",
    "decide": "D",
    "inject": "B",
    "publish": "$",
    "pause": "z",
    "wake": "a",
    "begins": "b",
    "renews": "h",
    "returns": "f",
    "leads": "L",
}
"""One character per kind of moment. If one step has several on a process, `_weight` decides which one the chart shows.
"""

ARRIVALS = frozenset({"receive", "lose"})
"""Moments at the target of a message."""

QUIET = frozenset({"begin", "receive", "timer", "stored"})
"""Moments that a story leaves out unless everything is requested."""


def story(moments: Iterable[Moment], everything: bool = False) -> str:
    """Return one line per moment: step, process, kind, label, and the number of the message if there is one."""
    moments = list(moments)
    told = [moment for moment in moments if everything or moment.kind not in QUIET]
    width = max((len(moment.process) for moment in told), default=0)
    ends = {moment.message: moment.process for moment in moments if moment.kind in ARRIVALS and moment.message >= 0}
    return "".join(_line(moment, width, ends) for moment in told)


def _line(moment: Moment, width: int, ends: Mapping[int, str]) -> str:
    number = f" [{moment.message}]" if moment.message >= 0 else ""
    to = f" to {ends.get(moment.message, 'no process: it stays in flight')}" if moment.kind == "send" else ""
    return (
        f"{moment.step:5d}  {moment.process or '*':<{width}}  {moment.kind:<8} {moment.label}{to}{number}".rstrip()
        + "\n"
    )


def processes_of(moments: Iterable[Moment]) -> list[str]:
    """Return every process with a moment, in order of appearance."""
    return list(dict.fromkeys(moment.process for moment in moments if moment.process))


def chart(moments: Sequence[Moment], width: int = 100) -> str:
    """Return a line per process with a column per step, wrapped at `width`, and a legend of the signs."""
    names = processes_of(moments)
    steps = max((moment.step for moment in moments), default=0) + 1
    margin = max((len(name) for name in names), default=0) + 1
    cells = {(moment.process, moment.step): "" for moment in moments}
    for moment in moments:
        sign = SIGNS.get(moment.kind)
        if sign:
            key = (moment.process, moment.step)
            cells[key] = max(cells[key], sign, key=_weight)
    recoveries = {moment.step for moment in moments if moment.kind == "recover"}
    blocks = [
        _block(names, cells, recoveries, start, min(steps, start + width), margin) for start in range(0, steps, width)
    ]
    return "\n".join(blocks) + "\n" + _chart_legend({sign for sign in cells.values() if sign})


def _weight(sign: str) -> int:
    # of several signs in one cell, the one that comes later here is shown
    order = "vtwrsdpx?!zabhfBDOC$RLX|"
    return order.find(sign)


def _block(
    names: Sequence[str], cells: dict[tuple[str, int], str], recoveries: set[int], start: int, end: int, margin: int
) -> str:
    lines = [
        f"{name:<{margin}}"
        + "".join(cells.get((name, step)) or ("|" if step in recoveries else "-") for step in range(start, end))
        for name in names
    ]
    ruler = " " * margin + "".join(f"{step:<10d}" for step in range(start, end, 10))
    return "\n".join([*lines, ruler.rstrip(), ""])


def _chart_legend(used: set[str]) -> str:
    meanings = [f"{sign} {kind}" for kind, sign in SIGNS.items() if sign in used]
    return "  ".join(meanings) + "\n"


# -- A space-time diagram as one SVG or HTML file: processes are lines, messages arrows, time runs to the right.
#
# The file has no scripts and no external parts. Colours follow the reader's light or dark scheme.


STEP, LANE, MARGIN_X, MARGIN_Y = 16, 70, 120, 56
LEGEND = 74
FOLD = 1_280
"""Maximal width of a page; a longer diagram continues in a band below."""
LEASE = {
    "elected": ("primary", -10),
    "issue": ("lease to {}", -10),
    "granted": ("granted {}", -10),
    "taking": ("at work", 18),
    "accepted": ("{} published", 30),
    "lease timed out": ("time is up", 18),
    "leads": ("leads", -10),
    "renews": ("renews", 18),
    "returns": ("returns", 30),
    "pause": ("stands still", -10),
    "wake": ("wakes", 18),
}
"""Moments of a lease: label, and its distance below the line."""

STYLE = """
  .canvas { fill: #ffffff } .ink { fill: #1c2330 } .soft { fill: #5b6577 }
  .lane { stroke: #b6bfcc; stroke-width: 1.5 } .down { stroke: #d64545; stroke-width: 1.5; stroke-dasharray: 2 4 }
  .row { stroke: #2f6fb5; stroke-width: 1.4; fill: none } .row-head { fill: #2f6fb5 }
  .control { stroke: #9a6a00; stroke-width: 1.1; stroke-dasharray: 5 3; fill: none } .control-head { fill: #9a6a00 }
  .dropped { stroke: #98a2b3; stroke-width: 1.2; stroke-dasharray: 1 3; fill: none } .dropped-head { fill: #98a2b3 }
  .pending { stroke: #98a2b3; stroke-width: 1; fill: none; stroke-dasharray: 6 4 }
  .checkpoint { fill: #2e8b57 } .complete { fill: #2e8b57; stroke: #1c2330; stroke-width: 1.5 }
  .crash { stroke: #d64545; stroke-width: 3 } .restore { fill: #d64545 } .line { stroke: #d64545; stroke-width: 2;
  stroke-dasharray: 8 4; fill: none } .moment { stroke: #d64545; stroke-width: 1; stroke-dasharray: 2 3 }
  .replay { fill: none; stroke: #8250c4; stroke-width: 2 } .read { fill: #2f6fb5 }
  .publish { fill: #8250c4 } .lost { stroke: #d64545; stroke-width: 2 }
  text { font: 12px system-ui, sans-serif } .small { font-size: 10px }
  @media (prefers-color-scheme: dark) {
    .canvas { fill: #14181f } .ink { fill: #e6eaf0 } .soft { fill: #9aa5b5 } .lane { stroke: #47505e }
    .row { stroke: #6aa9ec } .row-head { fill: #6aa9ec } .read { fill: #6aa9ec }
    .control { stroke: #d9a441 } .control-head { fill: #d9a441 }
    .dropped, .pending { stroke: #6b7686 } .dropped-head { fill: #6b7686 }
    .checkpoint { fill: #53c288 } .complete { fill: #53c288; stroke: #e6eaf0 }
    .crash, .line, .moment, .down, .lost { stroke: #ff7b72 } .restore { fill: #ff7b72 }
    .replay { stroke: #b794f4 } .publish { fill: #b794f4 }
  }
"""


@dataclass(frozen=True)
class _Sheet:
    """Layout: a row per process, a column per step with a drawn moment."""

    lanes: dict[str, int]
    columns: dict[int, int]

    def x(self, step: int) -> int:
        return MARGIN_X + STEP * self.columns[step]

    def y(self, process: str) -> int:
        return MARGIN_Y + LANE * self.lanes[process]

    @property
    def width(self) -> int:
        return max(MARGIN_X + STEP * (len(self.columns) + 2), 760)

    @property
    def height(self) -> int:
        """Height of one band, without the legend."""
        return MARGIN_Y + LANE * len(self.lanes)

    @property
    def bands(self) -> int:
        """Number of bands, each of which begins at the left edge."""
        return 1 if self.width <= FOLD else -(-(self.width - MARGIN_X) // (FOLD - MARGIN_X))

    @property
    def page_width(self) -> int:
        return min(self.width, FOLD)

    @property
    def page_height(self) -> int:
        return self.height * self.bands + LEGEND


def svg(moments: Sequence[Moment], title: str = "") -> str:
    """Return the diagram as a self-contained SVG document."""
    drawn = [moment for moment in moments if moment.kind not in ("timer", "begin")]
    sheet = _Sheet(
        {name: number for number, name in enumerate(processes_of(moments))},
        {step: number for number, step in enumerate(sorted({moment.step for moment in drawn}))},
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {sheet.page_width} {sheet.page_height}" '
        f'width="{sheet.page_width}" height="{sheet.page_height}" role="img">',
        f"<title>{escape(title)}</title><style>{STYLE}</style>{_heads()}",
        f'<rect class="canvas" width="{sheet.page_width}" height="{sheet.page_height}"/>',
        f'<text class="ink" x="16" y="24">{escape(title)}</text>',
        *_folded(
            sheet,
            [
                *_lanes(sheet, drawn),
                *_recoveries(sheet, drawn),
                *_arrows(sheet, drawn),
                *(_mark(sheet, moment) for moment in drawn if moment.process in sheet.lanes),
            ],
        ),
        *_legend(sheet),
        "</svg>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def html(moments: Sequence[Moment], title: str = "", story: str = "") -> str:
    """Return the diagram, with the story below it, as one page."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        "<style>:root { color-scheme: light dark } body { margin: 1rem; font: 14px system-ui, sans-serif }\n"
        ".sheet { overflow-x: auto } pre { font: 12px ui-monospace, monospace }</style></head>\n"
        f'<body><div class="sheet">\n{svg(moments, title)}</div>\n<pre>{escape(story)}</pre></body></html>\n'
    )


def _folded(sheet: _Sheet, parts: Sequence[str]) -> list[str]:
    """Return one band if the page is wide enough; else the drawing once, and a window onto it for each band."""
    if sheet.bands == 1:
        return list(parts)
    span = FOLD - MARGIN_X
    windows = []
    for band in range(sheet.bands):
        top, left = band * sheet.height, MARGIN_X - STEP + band * span
        windows.append(
            f'<svg class="band" x="{MARGIN_X - STEP}" y="{top}" width="{span}" height="{sheet.height}" '
            f'viewBox="{left} 0 {span} {sheet.height}"><use href="#drawing"/></svg>'
        )
        windows += [
            f'<text class="ink" x="16" y="{top + sheet.y(name) + 4}">{escape(name)}</text>' for name in sheet.lanes
        ]
    return ['<defs><g id="drawing">', *parts, "</g></defs>", *windows]


def _heads() -> str:
    kinds = ("row", "control", "dropped")
    heads = (
        f'<marker id="{kind}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path class="{kind}-head" d="M0 0 8 4 0 8z"/></marker>'
        for kind in kinds
    )
    return f"<defs>{''.join(heads)}</defs>"


def _lanes(sheet: _Sheet, moments: Sequence[Moment]) -> list[str]:
    end = sheet.width - STEP
    parts: list[str] = []
    for name in sheet.lanes:
        y = sheet.y(name)
        parts.append(f'<text class="ink" x="16" y="{y + 4}">{escape(name)}</text>')
        parts.append(f'<line class="lane" x1="{MARGIN_X - STEP}" y1="{y}" x2="{end}" y2="{y}"/>')
        parts.extend(
            f'<line class="down" x1="{first}" y1="{y}" x2="{last}" y2="{y}"/>'
            for first, last in _outages(sheet, name, moments, end)
        )
    return parts


def _outages(sheet: _Sheet, name: str, moments: Sequence[Moment], end: int) -> list[tuple[int, int]]:
    """Return the spans from each crash to the next restore."""
    found, since = [], None
    for moment in moments:
        if moment.process != name:
            continue
        if moment.kind == "crash" and since is None:
            since = sheet.x(moment.step)
        elif moment.kind in ("restore", "recover", "begins") and since is not None:
            found.append((since, sheet.x(moment.step)))
            since = None
    return [*found, (since, end)] if since is not None else found


def _recoveries(sheet: _Sheet, moments: Sequence[Moment]) -> list[str]:
    """Draw each recovery: its decision, and the line through the restored states."""
    bottom = sheet.height - LANE // 3
    parts: list[str] = []
    for place, moment in enumerate(moments):
        if moment.kind == "recover" and not moment.process:
            x = sheet.x(moment.step)
            label = f"incarnation {escape(moment.label)}"
            parts.append(f'<line class="moment" x1="{x}" y1="{MARGIN_Y - 16}" x2="{x}" y2="{bottom}"/>')
            parts.append(f'<text class="soft small" x="{x + 3}" y="{MARGIN_Y - 18}">{label}</text>')
            points = _line_of(sheet, moments, place)
            parts.append(f'<polyline class="line" points="{points}"><title>{label}</title></polyline>')
    return parts


def _line_of(sheet: _Sheet, moments: Sequence[Moment], place: int) -> str:
    now = sheet.x(moments[place].step)
    captured: dict[tuple[str, str], int] = {}
    for moment in moments[:place]:
        if moment.kind == "capture":
            captured[moment.process, moment.label.split(" ")[0]] = sheet.x(moment.step)
    found: dict[str, int] = {}
    for moment in moments[place + 1 :]:
        if moment.kind == "recover":
            break
        if moment.kind == "return":
            index = moment.label
            found[moment.process] = now if index == "now" else captured.get((moment.process, index), MARGIN_X - STEP)
    # a process that did not do its part has no point
    return " ".join(f"{found[name]},{sheet.y(name)}" for name in sheet.lanes if name in found)


def _arrows(sheet: _Sheet, moments: Sequence[Moment]) -> list[str]:
    sent = {moment.message: moment for moment in moments if moment.kind == "send" and moment.message >= 0}
    met: dict[int, list[Moment]] = {}
    for moment in moments:
        if moment.kind in ("receive", "lose") and moment.message >= 0:
            met.setdefault(moment.message, []).append(moment)
    dropped = {(moment.process, moment.step) for moment in moments if moment.kind == "drop"}
    parts: list[str] = []
    for number, start in sent.items():
        ends = met.get(number, [])
        parts.extend(_arrow(sheet, start, end, (end.process, end.step) in dropped) for end in ends)
        if not ends:
            parts.append(_stub(sheet, start))
    return parts


def _is_row(label: str) -> bool:
    """Return True for a message of the application: its label is a lineage."""
    return "." in label or "/" in label


def _arrow(sheet: _Sheet, start: Moment, end: Moment, dropped: bool) -> str:
    kind = "dropped" if dropped or end.kind == "lose" else "row" if _is_row(start.label) else "control"
    x1, y1, x2, y2 = sheet.x(start.step), sheet.y(start.process), sheet.x(end.step), sheet.y(end.process)
    if end.kind == "lose":
        x2, y2 = (x1 + 2 * x2) // 3, (y1 + y2) // 2
    tip = f"<title>{escape(start.label)}</title>"
    cross = f'<path class="lost" d="M{x2 - 4} {y2 - 4}l8 8m0 -8l-8 8"/>' if end.kind == "lose" else ""
    return f'<path class="{kind}" marker-end="url(#{kind})" d="M{x1} {y1}L{x2} {y2}">{tip}</path>{cross}'


def _stub(sheet: _Sheet, start: Moment) -> str:
    """Draw a short line for a message that was never received."""
    x, y = sheet.x(start.step), sheet.y(start.process)
    return f'<path class="pending" d="M{x} {y}l{STEP} 14"><title>{escape(start.label)}: never received</title></path>'


def _mark(sheet: _Sheet, moment: Moment) -> str:
    x, y = sheet.x(moment.step), sheet.y(moment.process)
    tip = f"<title>step {moment.step}: {escape(moment.process)} {escape(moment.kind)} {escape(moment.label)}</title>"
    match moment.kind:
        case "capture":
            number = escape(moment.label.split(" ")[0])
            label = f'<text class="soft small" x="{x - 4}" y="{y - 10}">{number}</text>'
            return f'<rect class="checkpoint" x="{x - 5}" y="{y - 5}" width="10" height="10">{tip}</rect>{label}'
        case "complete":
            label = f'<text class="soft small" x="{x + 8}" y="{y + 18}">{escape(moment.label)} complete</text>'
            return f'<path class="complete" d="M{x} {y - 9}l9 9l-9 9l-9 -9z">{tip}</path>{label}'
        case "crash":
            return f'<path class="crash" d="M{x - 7} {y - 7}l14 14m0 -14l-14 14">{tip}</path>'
        case "restore" | "recover":
            return f'<path class="restore" d="M{x - 5} {y - 7}l11 7l-11 7z">{tip}</path>'
        case "replay":
            return f'<circle class="replay" cx="{x}" cy="{y}" r="6">{tip}</circle>'
        case "read":
            return f'<circle class="read" cx="{x}" cy="{y}" r="3">{tip}</circle>'
        case "publish":
            return f'<path class="publish" d="M{x - 6} {y + 12}h12l-6 -9z">{tip}</path>'
    return _lease_mark(x, y, moment, tip) if moment.kind in LEASE else ""


def _lease_mark(x: int, y: int, moment: Moment, tip: str) -> str:
    wording, below = LEASE[moment.kind]
    label = f'<text class="soft small" x="{x - 4}" y="{y + below}">{escape(wording.format(moment.label))}</text>'
    if moment.kind == "taking":
        return f'<rect class="checkpoint" x="{x - 5}" y="{y - 5}" width="10" height="10">{tip}</rect>{label}'
    if moment.kind == "accepted":
        return f'<path class="complete" d="M{x} {y - 9}l9 9l-9 9l-9 -9z">{tip}</path>{label}'
    return f'<circle class="read" cx="{x}" cy="{y}" r="3">{tip}</circle>{label}'


def _legend(sheet: _Sheet) -> list[str]:
    y = sheet.page_height - 40
    entries = [
        ('<path class="row" marker-end="url(#row)" d="M0 0h26"/>', "row"),
        ('<path class="control" marker-end="url(#control)" d="M0 0h26"/>', "barrier, marker, control"),
        ('<path class="dropped" marker-end="url(#dropped)" d="M0 0h26"/>', "dropped or lost"),
        ('<rect class="checkpoint" x="8" y="-5" width="10" height="10"/>', "checkpoint"),
        ('<path class="complete" d="M13 -8l8 8l-8 8l-8 -8z"/>', "complete"),
        ('<path class="crash" d="M6 -7l14 14m0 -14l-14 14"/>', "crash"),
        ('<path class="line" d="M0 0h26"/>', "recovery line"),
        ('<path class="restore" d="M8 -7l11 7l-11 7z"/>', "restored"),
        ('<circle class="replay" cx="13" cy="0" r="6"/>', "replayed"),
        ('<path class="publish" d="M7 5h12l-6 -9z"/>', "published"),
    ]
    parts, x = [], 16
    for sign, text in entries:
        if x > sheet.page_width - 150:
            x, y = 16, y + 24
        parts.append(f'<g transform="translate({x} {y})">{sign}<text class="soft" x="34" y="4">{text}</text></g>')
        x += 52 + 7 * len(text)
    return parts

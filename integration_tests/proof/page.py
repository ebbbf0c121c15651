"""`docs/proof.md`: what was tried on the simulator, from one measurement."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median

from checkpoint_protocols.menu import MENU
from integration_tests.proof import ledger
from integration_tests.proof.mutants import PACKAGES, Mutant, Results, read, score
from integration_tests.proof.tried import CLASSES
from integration_tests.survival.process import ROOT
from tests.protocol.scopes import SCOPES_WITH_FAILURES
from tests.protocol.test_logging_schedules import SCOPES
from tests.simulator import eager

RESULTS = Path(__file__).with_name("results.json")
PAGE = ROOT / "docs" / "proof.md"
MENDS = eager.MENDS | {"back"}
"""Ends of faults are none."""

HEAD = """# What was tried on the simulator

Written by `python -m integration_tests.proof all --seconds {seconds}` on {date} at commit `{commit}` ({machine}),
from seed {first} on. Real kills, with real processes, brokers and disks, have a page of their own:
[Reliability](reliability.md). How the simulator judges: [Simulator](design/simulator.md).

What follows is of one short run: {schedules:,} schedules, {hours:,.0f} hours of simulated time,
{failed} condemned. Every tenth seed was run again and gave the same choices byte for byte ({replayed:,} seeds).
Longer campaigns, which add up, come at the end: {in_all.schedules:,} schedules, {in_all.hours:,.0f} hours.
"""


FAULTS = (
    "Share of the schedules in which it happened, of those in whose world it can (lines fail in half of the worlds, "
    "recoveries go by steps in half of them, messages of the application are lost on unreliable channels only), over all "
    "protocols of the menu; below them the worlds with faults of their own, there of the schedules in which it could happen at "
    "some step. The aim is 40 percent. An eighth of the schedules draws as `simulate` does; in the others what has not happened "
    "yet goes before what has (`tests/simulator/eager.py`), and two in seven of these, of the menu, go first the way of a "
    "schedule that reached something new. One in sixteen lives ten times as long."
)
BUGS = (
    "An oracle, a machine that refuses an event, or a typed error of the product condemns a schedule; any other exception ends the "
    "measurement. "
    "A bug is tried on the schedules of the test that keeps it, from its first seed on: lives ten times as long as usual ones in "
    "the worlds of messages, of drivers and of leases; three in four of these draw as most "
    "above do. On Spark three in four live ten times as long. "
    "Those of going back and of outboxes are kept: searches and campaigns have found the schedules that are tried. "
    "All of it took {seconds:.0f} seconds of a processor."
)


def write_page(results: Path = RESULTS, page: Path = PAGE) -> None:
    """All of it, anew."""
    page.write_text(page_of(json.loads(results.read_text()), ledger.read()))


def page_of(measured: Mapping[str, object], campaigns: Sequence[ledger.Line] = ()) -> str:
    """The page as text."""
    tried, caught = measured["tried"], measured["caught"]
    assert isinstance(tried, list)
    assert isinstance(caught, list)
    head = HEAD.format(
        seconds=round(min(each["seconds"] for each in tried)),
        schedules=sum(each["schedules"] for each in tried),
        hours=sum(each["simulated_ms"] for each in tried) / 3_600_000,
        failed=sum(len(each["failures"]) for each in tried),
        replayed=sum(each["replayed"] for each in tried),
        in_all=ledger.Sum.of(campaigns),
        **{name: measured[name] for name in ("date", "commit", "machine", "first")},
    )
    measurement = [_schedules(tried), _faults(tried), _curve(tried), _bugs(caught, measured.get("bugs"))]
    parts = [head, *measurement, mutants_section(read()), _scopes(), campaigns_of(campaigns)]
    return "\n".join(parts)


def _schedules(tried: Sequence[Mapping[str, object]]) -> str:
    lines = [
        f"| {each['protocol']} | {each['schedules']:,} | {each['steps']:,} | {_hours(each)} "
        f"| {each['schedules'] / each['seconds']:.0f} | {len(each['failures'])} |"
        for each in tried
    ]
    return _section(
        "Schedules",
        "Half of each protocol of the menu runs on the fixed graphs, half in worlds drawn from the seed: "
        "graph, inputs, times, options, clocks. "
        "The lease has clocks at 70 to 110 percent of time. Simulated time passes only by timers; the job on "
        "Spark counts none.",
        "| protocol | schedules | steps | simulated hours | schedules a second of a processor | condemned |",
        "|---|---:|---:|---:|---:|---:|",
        lines,
    )


def _hours(each: Mapping[str, object]) -> str:
    hours = float(str(each["simulated_ms"])) / 3_600_000
    return f"{hours:,.2f}" if hours else "-"


def _faults(tried: Sequence[Mapping[str, object]]) -> str:
    of_menu = [each for each in tried if each["protocol"] in MENU]
    lines = [f"| {words} | {_share(of_menu, kind)} |" for kind, words in CLASSES.items()]
    own = [f"| {each['protocol']} | {', '.join(_shares(each))} |" for each in tried if each["protocol"] not in MENU]
    section = _section("Faults", FAULTS, "| what went wrong | share of schedules |", "|---|---:|", lines)
    return "\n".join(
        [section, "| world | what went wrong, in how many of the schedules that offer it |", "|---|---|", *own, ""]
    )


def _share(tried: Sequence[Mapping[str, object]], kind: str) -> str:
    """Of the schedules that can have it."""
    happened = sum(_count(each, "happened", kind) for each in tried)
    could = sum(_count(each, "could", kind) for each in tried)
    return f"{happened / could:.0%}" if could else "-"


def _count(each: Mapping[str, object], of: str, kind: str) -> int:
    counts = each[of]
    assert isinstance(counts, dict)
    return int(counts.get(kind, 0))


def _shares(each: Mapping[str, object]) -> Iterable[str]:
    happened = each["happened"]
    assert isinstance(happened, dict)
    shares = {
        kind: count / _count(each, "could", kind) for kind, count in happened.items() if count and kind not in MENDS
    }
    for kind, share in sorted(shares.items(), key=lambda pair: -pair[1]):
        yield f"{kind} {share:.0%}"


def _curve(tried: Sequence[Mapping[str, object]]) -> str:
    lines = []
    for each in tried:
        curve = each["curve"]
        if not curve[-1][1]:
            continue
        last = curve[-1][1]
        before = next(states for schedules, states in reversed(curve) if schedules <= 0.8 * curve[-1][0])
        points = ", ".join(f"{states}" for _, states in curve)
        lines.append(f"| {each['protocol']} | {points} | {(last - before) / last:.1%} |")
    return _section(
        "Distinct states",
        "Distinct triples of a machine's phase, the event it met and the fault before it, after each tenth of "
        "the time, and how much of them the last fifth of the "
        "schedules added. Where that is near nothing, more of the same finds nothing.",
        "| protocol | distinct states | new in the last fifth |",
        "|---|---|---:|",
        lines,
    )


def _bugs(caught: Sequence[Mapping[str, object]], when: object = None) -> str:
    """`when`: date and commit, of bugs that were measured after the schedules."""
    seeds = [each["seeds"] for each in caught if each["seeds"] is not None]
    lines = [f"| {each['where']} | {each['bug']} | {each['seeds'] or 'not within 400'} |" for each in caught]
    measured = "Measured on {date} at commit `{commit}`. ".format_map(when) if isinstance(when, Mapping) else ""
    within, seconds = sum(number <= 10 for number in seeds), sum(each["seconds"] for each in caught)
    return _section(
        "Planted bugs",
        f"{len(caught)} bugs, {len(seeds)} caught; schedules until the first condemned one: median "
        f"{median(seeds):g}, at most {max(seeds)}; {within} within ten. {measured}{BUGS.format(seconds=seconds)}",
        "| where | bug | seeds until it is caught |",
        "|---|---|---:|",
        lines,
    )


def mutants_section(results: Results) -> str:
    """How many of a sample the tests noticed, and each that they did not at first."""
    kept = results.kept()
    drawn = " and ".join(f"{size} with seed {seed}" for seed, size in results.samples.items())
    of = ", ".join(f"{number:,} of `{package}/`" for package, number in results.of.items())
    head = _section(
        "Mutants",
        MUTANTS.format(drawn=drawn, of=of, tried=len(kept)),
        "| | tried | equivalent | killed at first | killed now | only text differs | open "
        "| share at first | share now | now, without text |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
        [_score(name, [each for each in kept if each.package == name]) for name in PACKAGES] + [_score("all", kept)],
    )
    order = {name: place for place, name in enumerate(("hole", "open", "equivalent", "text"))}
    alive = [each for each in kept if each.verdict or not each.dead]
    rows = [_survivor(each) for each in sorted(alive, key=lambda each: (order[each.verdict or "open"], each.name))]
    table = "\n".join(["| mutant | change | verdict | why, or which test kills it |", "|---|---|---|---|", *rows, ""])
    return f"{head}\n{table}"


MUTANTS = (
    "A line of a function is changed, and tests that reach the function should fail: `python -m integration_tests.proof mutants` "
    "(mutmut, extra `mutation`). Of the mutants ({of}) a random sample was drawn, {drawn}; {tried} results are of the present "
    "text. A mutant is tried by the fastest tests that reach its function, a survivor by more of them; tests of planted bugs and "
    "the slowest ones are left out. Intervals are Wilson's, 95 percent. Not mutated: what is outside of functions, and functions "
    "with a decorator, properties above all. A hole is a survivor for which a test was written: the share at first is what an "
    "undisturbed mutant meets, the share now is flattered by these tests. Equivalent mutants count nowhere. The sample of seed 1 "
    "had 5 seconds of tests for a mutant (`store/`: 10) and no second round; its holes were tried with the test that is named, "
    "and what had timed out once more by itself."
)


def _score(name: str, tried: Sequence[Mutant]) -> str:
    found = score(tried)
    numbers = (found.tried, found.verdicts["equivalent"], found.dead - found.verdicts["hole"], found.dead)
    shares = (found.share(first=True), found.share(), found.share("text"))
    cells = [*map(str, numbers), str(found.verdicts["text"]), str(found.verdicts["open"]), *map(_interval, shares)]
    return f"| {name} | {' | '.join(cells)} |"


def _interval(share: tuple[float, float, float]) -> str:
    return f"{share[0]:.1%} ({share[1]:.1%} to {share[2]:.1%})"


def _survivor(each: Mutant) -> str:
    """In a table a line break is `<br>`, and a bar is written as what HTML calls it."""
    lines = "<br>".join(f"`{line.replace('|', '¦').replace('`', '')}`" for line in each.change.splitlines())
    name = each.name.removeprefix("spark_ckpt.").replace("ǁ", ".").replace(".x.", ".").replace(".x_", ".")
    return f"| {name.replace('__mutmut_', ' ')} | {lines} | {each.verdict or 'open'} | {each.why} |"


def _scopes() -> str:
    lines = [f"| {name} | {scope[-1]:,} | |" for name, scope in SCOPES.items()]
    lines += [f"| {scope.title} | {scope.states:,} | {scope.seconds} |" for scope in SCOPES_WITH_FAILURES]
    lines += [f"| {name} | {states} | |" for name, states in _specs()]
    return _section(
        "Every schedule of a small scope",
        "Visited exhaustively by the tests, which assert these numbers: scopes of the simulator, then models "
        "in TLA+ (`specs/README.md` says what each holds). With partial-order reduction where it says so: on small scopes "
        "`tests/simulator/test_reduction.py` compares it with the full exploration.",
        "| scope | distinct states | seconds of a processor |",
        "|---|---:|---:|",
        lines,
    )


def _specs() -> Iterable[tuple[str, str]]:
    table = (ROOT / "specs" / "README.md").read_text().partition("## Mutants")[0]
    name = ""
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and cells[3].replace(",", "").isdigit():
            name = cells[0] or name
            yield f"{name}: {cells[2]}", cells[3]


CAMPAIGNS = (
    "`python -m integration_tests.proof schedules --seconds 60 --rounds 10 --processes 2` goes on with seeds that no campaign has "
    "tried. Every tenth schedule was run twice and gave the same choices byte for byte."
)


def campaigns_of(lines: Sequence[ledger.Line]) -> str:
    """What campaigns come to, one by one and protocol by protocol, and every schedule that was condemned."""
    rows = [f"| {when.date} | `{when.commit}` | {_summed(found)} |" for when, found in ledger.by_campaign(lines)]
    rows.append(f"| in all | | {_summed(ledger.Sum.of(lines))} |")
    header = "schedules | simulated hours | run twice | condemned |"
    table = _section("Campaigns", CAMPAIGNS, f"| date | commit | {header}", "|---|---|---:|---:|---:|---:|", rows)
    names = [f"| {name} | {_summed(found)} |" for name, found in ledger.by_protocol(lines).items()]
    by_protocol = ["", f"| protocol | {header}", "|---|---:|---:|---:|---:|", *names, ""]
    return "\n".join([table.rstrip(), *by_protocol, *_condemned(lines)]).rstrip() + "\n"


def _condemned(lines: Sequence[ledger.Line]) -> list[str]:
    """Alike ones together, with what came of them."""
    found: dict[str, list[str]] = {}
    for line in lines:
        for each in line.condemned:
            found.setdefault(each.verdict or f"{each.error} (open)", []).append(f"{line.protocol} {each.seed}")
    told = [f"- {verdict}: {', '.join(seeds)}" for verdict, seeds in found.items()]
    return ["What was condemned, by protocol and seed, and what came of it:", "", *told] if told else []


def _summed(found: ledger.Sum) -> str:
    return f"{found.schedules:,} | {found.hours:,.0f} | {found.replayed:,} | {found.condemned}"


def _section(title: str, text: str, header: str, rule: str, lines: Sequence[str]) -> str:
    return "\n".join([f"## {title}", "", text, "", header, rule, *lines, ""])

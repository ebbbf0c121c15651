"""`docs/proof.md`: tried on the simulator, from one measurement."""

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
"""Ends of faults, which are no faults."""

HEAD = """# Tried on the simulator

This page is the result of `python -m integration_tests.proof all --seconds {seconds}`, run on {date} at commit
`{commit}` ({machine}), from seed {first} on. [Simulator](design/simulator.md) explains the terms and the oracles.
[Reliability](reliability.md) describes campaigns with real processes, brokers and disks.

The run had {schedules:,} schedules, with {hours:,.0f} hours of simulated time. The oracles condemned {failed}
schedules. Every tenth seed ran again and made the same choices byte for byte ({replayed:,} seeds). [Longer
campaigns](#campaigns) had {in_all.schedules:,} schedules, with {in_all.hours:,.0f} hours of simulated time.
"""


FAULTS = """The first table covers the protocols over messages. It shows how many of the schedules in which a fault is possible
had the fault. Control messages are lost or repeated, and recoveries reach the processes one by one, in half of the
worlds only. Messages of the application are lost or repeated on unreliable channels only.

The second table covers the worlds with faults of their own. It shows how many of the schedules in which a fault was
possible at some step had the fault. The aim is 40 percent for each fault.

One schedule in eight draws its faults as `spark-ckpt simulate` does. The other schedules prefer faults that have not
occurred yet (`tests/simulator/eager.py`). Over messages, two in seven of these schedules begin with the steps of a
schedule that reached a new state. One schedule in sixteen is ten times as long."""
BUGS = """An oracle, a machine that refuses an event, or a typed error of the product condemns a schedule. Any other exception
ends the measurement. Each bug runs on the schedules of its own test, beginning with that test's first seed:

- In the worlds of messages, drivers and leases these schedules are ten times as long as usual. Three in four of them
  prefer faults that have not occurred yet.
- On Spark three in four of the schedules are ten times as long.
- Bugs of restores ("going back") and of outboxes run on stored seeds, which searches and campaigns found.

The measurement took {seconds:.0f} seconds of processor time."""


def write_page(results: Path = RESULTS, page: Path = PAGE) -> None:
    """Write the whole page again."""
    page.write_text(page_of(json.loads(results.read_text()), ledger.read()))


def page_of(measured: Mapping[str, object], campaigns: Sequence[ledger.Line] = ()) -> str:
    """Text of the page."""
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
        "Half of the schedules of each protocol over messages run on fixed graphs. The other half run in worlds that the seed "
        "draws: graph,\ninputs, times, options, clocks. In the world `lease` the clocks run at 70 to 110 percent of real time. "
        "Only timers advance\nsimulated time. `-` means that the world counts no simulated time.",
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
    """Share of the schedules in which this fault is possible."""
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
        before = next((states for schedules, states in reversed(curve) if schedules <= 0.8 * curve[-1][0]), 0)
        points = ", ".join(f"{states}" for _, states in curve)
        lines.append(f"| {each['protocol']} | {points} | {(last - before) / last:.1%} |")
    return _section(
        "Distinct states",
        "A state is a triple: the phase of a machine, the event that it received, and the fault before the event. The second "
        "column counts\nthe states after each tenth of the time. The third column is the share that the last fifth of the "
        "schedules added. If it is\nnear zero, more schedules of this kind are unlikely to find new states.",
        "| protocol | distinct states | new in the last fifth |",
        "|---|---|---:|",
        lines,
    )


NAMES = {
    "rules beside it": "rules around an incarnation",
    "epochs, nobody stops for a recovery": "epochs, no process stops for a recovery",
    "coordinated, nobody stops for a recovery": "coordinated, no process stops for a recovery",
    "P6g goes on with old numbers": "P6g continues with old numbers",
}
"""Names on the page for names in the stored results."""


def _bugs(caught: Sequence[Mapping[str, object]], when: object = None) -> str:
    """`when`: date and commit, if the bugs were measured after the schedules."""
    seeds = [each["seeds"] for each in caught if each["seeds"] is not None]
    lines = [
        f"| {_shown(each['where'])} | {_shown(each['bug'])} | {each['seeds'] or 'not within 400'} |" for each in caught
    ]
    measured = "Measured on {date} at commit `{commit}`.".format_map(when) if isinstance(when, Mapping) else ""
    within, seconds = sum(number <= 10 for number in seeds), sum(each["seconds"] for each in caught)
    return _section(
        "Planted bugs",
        f"{len(caught)} bugs, {len(seeds)} caught. The first condemned schedule of a bug was number {median(seeds):g} in the "
        f"median and number {max(seeds)} at most.\nIt was among the first ten for {within} bugs. "
        f"{measured}\n\n{BUGS.format(seconds=seconds)}",
        "| where | bug | seeds until it is caught |",
        "|---|---|---:|",
        lines,
    )


def _shown(name: object) -> str:
    return NAMES.get(str(name), str(name))


def mutants_section(results: Results) -> str:
    """Score of a sample, and each mutant that survived at first."""
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


MUTANTS = """A mutant is a function with one changed line; the tests that reach the function should fail. To try mutants, run
`python -m integration_tests.proof mutants` (mutmut, extra `mutation`).

- **Sample:** a random sample of all mutants ({of}), {drawn}. {tried} results count, because their function has not
  changed since.
- **Tests:** the fastest tests that reach the function run, and more of them on a survivor. Tests of planted bugs and
  the slowest tests do not run. In the sample of seed 1 the tests of a mutant had 5 seconds (`store/`: 10), without a
  second round. Its holes ran again with the named test, and its timeouts ran again alone.
- **Not mutated:** code outside of functions, and functions with a decorator, mostly properties.
- **Hole:** a survivor for which a test was written. "Share at first" counts it as alive. "Share now" counts it as
  killed, and is therefore too high for other mutants.
- **Equivalent:** a mutant without a visible difference. The shares exclude it.
- **Intervals:** Wilson's, 95 percent."""


def _score(name: str, tried: Sequence[Mutant]) -> str:
    found = score(tried)
    numbers = (found.tried, found.verdicts["equivalent"], found.dead - found.verdicts["hole"], found.dead)
    shares = (found.share(first=True), found.share(), found.share("text"))
    cells = [*map(str, numbers), str(found.verdicts["text"]), str(found.verdicts["open"]), *map(_interval, shares)]
    return f"| {name} | {' | '.join(cells)} |"


def _interval(share: tuple[float, float, float]) -> str:
    return f"{share[0]:.1%} ({share[1]:.1%} to {share[2]:.1%})"


def _survivor(each: Mutant) -> str:
    """In a table a line break is `<br>`, and a bar is replaced."""
    lines = "<br>".join(f"`{line.replace('|', '¦').replace('`', '')}`" for line in each.change.splitlines())
    name = each.name.removeprefix("spark_ckpt.").replace("ǁ", ".").replace(".x.", ".").replace(".x_", ".")
    return f"| {name.replace('__mutmut_', ' ')} | {lines} | {each.verdict or 'open'} | {each.why} |"


def _scopes() -> str:
    lines = [f"| {name} | {scope[-1]:,} | |" for name, scope in SCOPES.items()]
    lines += [f"| {scope.title} | {scope.states:,} | {scope.seconds} |" for scope in SCOPES_WITH_FAILURES]
    lines += [f"| {name} | {states} | |" for name, states in _specs()]
    return _section(
        "Every schedule of a small scope",
        "The tests visit every state of these scopes and assert the numbers. The table lists scopes of the simulator, then models "
        "in TLA+\n(`specs/README.md`). `reduced` means partial-order reduction, which `tests/simulator/test_reduction.py` "
        "compares\nwith the full exploration on small scopes.",
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


CAMPAIGNS = """`python -m integration_tests.proof schedules --seconds 60 --rounds 10 --processes 2` tries seeds that no campaign has
tried before. Every tenth schedule ran twice, and made the same choices byte for byte."""


def campaigns_of(lines: Sequence[ledger.Line]) -> str:
    """Results of all campaigns, by campaign and by protocol, and every condemned schedule."""
    rows = [f"| {when.date} | `{when.commit}` | {_summed(found)} |" for when, found in ledger.by_campaign(lines)]
    rows.append(f"| in all | | {_summed(ledger.Sum.of(lines))} |")
    header = "schedules | simulated hours | run twice | condemned |"
    table = _section("Campaigns", CAMPAIGNS, f"| date | commit | {header}", "|---|---|---:|---:|---:|---:|", rows)
    names = [f"| {name} | {_summed(found)} |" for name, found in ledger.by_protocol(lines).items()]
    by_protocol = ["", f"| protocol | {header}", "|---|---:|---:|---:|---:|", *names, ""]
    return "\n".join([table.rstrip(), *by_protocol, *_condemned(lines)]).rstrip() + "\n"


def _condemned(lines: Sequence[ledger.Line]) -> list[str]:
    """Equal verdicts together, with their seeds."""
    found: dict[str, list[str]] = {}
    for line in lines:
        for each in line.condemned:
            found.setdefault(each.verdict or f"{each.error} (open)", []).append(f"{line.protocol} {each.seed}")
    listed = [f"- {verdict}: {', '.join(seeds)}" for verdict, seeds in found.items()]
    return (
        ["Condemned schedules by protocol and seed, with the cause and the correction:", "", *listed] if listed else []
    )


def _summed(found: ledger.Sum) -> str:
    return f"{found.schedules:,} | {found.hours:,.0f} | {found.replayed:,} | {found.condemned}"


def _section(title: str, text: str, header: str, rule: str, lines: Sequence[str]) -> str:
    return "\n".join([f"## {title}", "", text, "", header, rule, *lines, ""])

"""Names of sources and operators in the job. Spark numbers them, a job uses names. Pure rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from spark_ckpt.errors import ConfigInvalid


def names_of(
    kind: str, there: Mapping[str, str], written: Sequence[str], valid: Callable[[str, str], str]
) -> dict[str, str]:
    """Return the name of each source or operator of a query, by Spark's number or name.

    `there`: descriptions by Spark's number or name. `written`: NAME=NUMBER, or NAME if there is only one. `valid`:
    checks (kind, name). Raises `ConfigInvalid` for an entry with no name or two names, and for an unknown number.
    """
    found: dict[str, str] = {}
    for each in written:
        name, number = _parts(kind, each, there)
        if number not in there:
            raise ConfigInvalid(
                f"--{kind} {each}: the query has no {kind} {number}", hint=_hint(kind, there), **_listed(kind, there)
            )
        if number in found:
            raise ConfigInvalid(
                f"--{kind}: {kind} {number} has two names, '{found[number]}' and '{name}'", hint="give it one"
            )
        if name in found.values():
            raise ConfigInvalid(f"--{kind}: two {kind}s are named '{name}'", hint="give each a name of its own")
        found[number] = valid(kind, name)
    missing = [number for number in there if number not in found]
    if missing:
        what = f"{kind} {missing[0]} of the query has no name in the job"
        raise ConfigInvalid(what, hint=_hint(kind, there), **_listed(kind, there))
    return found


def _parts(kind: str, written: str, there: Mapping[str, str]) -> tuple[str, str]:
    name, equals, number = written.partition("=")
    if equals:
        return name, number
    if len(there) != 1:
        raise ConfigInvalid(f"--{kind} {written}: which {kind} is it?", hint=_hint(kind, there), **_listed(kind, there))
    return name, next(iter(there))


def _listed(kind: str, there: Mapping[str, str]) -> dict[str, str]:
    return {f"{kind} {number}": words for number, words in there.items()}


def _hint(kind: str, there: Mapping[str, str]) -> str:
    if not there:
        return f"the query has no {kind}: leave --{kind} out"
    calls = " ".join(f"--{kind} NAME={number}" for number in there)
    return f"name each as the job does: {calls}"

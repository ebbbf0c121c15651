"""The installed connectors, found by their entry points in the group `spark_ckpt.connectors`.

An entry point names a module whose `CONNECTOR` is a `spark_ckpt.connector.Connector`, or that object itself. Only
requested connectors are imported, so that a broken package affects only its users.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution, entry_points
from pathlib import Path

from spark_ckpt.connector import CONTRACT, Connector, Sink, Source
from spark_ckpt.errors import CkptError, ConfigInvalid, ConnectorBroken, ConnectorTooNew, ConnectorUnknown
from spark_ckpt.jars import Jar, fetch

GROUP = "spark_ckpt.connectors"
ATTRIBUTE = "CONNECTOR"
_OWN = "spark-ckpt"
_LISTS = frozenset({"spark.sql.extensions"})
"""Spark settings that are lists: the values of several connectors are joined."""


_ALSO = {
    "identity": "notices that its input or target is another one",
    "limited": "bounds batches in rows",
    "lag": "counts the rows that wait",
    "shown_as": "shows how far a job has read",
    "remember_in": "keeps what it consumed in the store",
    "memory_damage": "has what it keeps there checked by `spark-ckpt verify`",
    "seed": "begins where Spark's checkpoint says",
    "adopted": "continues where a plain query stopped",
    "newest_published": "reports the newest published epoch",
    "declaring": "lets the operator say what it has published",
}
"""Meaning for a user of each optional protocol of `spark_ckpt.connector`, by the protocol's first method."""


@dataclass(frozen=True, slots=True)
class Installed:
    """A connector, the module that users import its classes from, and its distribution."""

    connector: Connector
    module: str
    distribution: str
    version: str

    @property
    def name(self) -> str:
        """Name as in `spark_ckpt.session("x", name)`."""
        return self.connector.name

    def sources(self) -> list[type[Source]]:
        """Import and return its source classes. Raises `ConnectorBroken`."""
        return [self._class(name, Source) for name in self.connector.sources]

    def sinks(self) -> list[type[Sink]]:
        """Import and return its sink classes. Raises `ConnectorBroken`."""
        return [self._class(name, Sink) for name in self.connector.sinks]

    def _class(self, name: str, kind: type) -> type:
        try:
            found = getattr(import_module(self.module), name)
        except Exception as error:  # the package's own code runs here
            raise _not_imported(f"{self.module}.{name}", error, self.name, self.distribution) from error
        if not inspect.isclass(found) or not issubclass(found, kind):
            lacks = sorted(each for each in vars(kind) if not each.startswith("_") and not hasattr(found, each))
            raise ConnectorBroken(
                f"{self.module}.{name} is not a {kind.__name__.lower()}: it lacks {', '.join(lacks) or 'being a class'}",
                hint=f"upgrade {self.distribution}, or ask its authors: spark_ckpt.connector.{kind.__name__} says what is needed",
                connector=self.name,
                distribution=self.distribution,
            )
        return found


def promises(kind: type[Source] | type[Sink]) -> list[str]:
    """Return the promises of a source or sink class: of its protocol, and of the optional protocols that it implements."""
    first = "rows exactly once" if issubclass(kind, Sink) else "the same rows again from every cursor"
    # By a method's name: `issubclass` refuses a protocol that has an attribute.
    return [first, *(words for method, words in _ALSO.items() if hasattr(kind, method))]


def names() -> list[str]:
    """Return the names of the installed connectors, including those that cannot be imported."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})


def named(name: str) -> Installed:
    """Return the connector of this name. Raises `ConnectorUnknown`, `ConnectorBroken`, `ConnectorTooNew`."""
    entries = list(entry_points(group=GROUP, name=name))
    if not entries:
        raise _unknown(name)
    # The order of sys.path would choose one of them, so that an installation could change the sink of a job.
    if len(entries) > 1:
        raise ConnectorBroken(
            f"{len(entries)} packages declare a connector {name!r}: {', '.join(sorted(map(_distribution, entries)))}",
            hint="uninstall all but one of them",
        )
    return _loaded(entries[0])


def jar_paths(chosen: Iterable[Installed]) -> list[Path]:
    """Return the jars that the connectors need, each file once. Missing jars are fetched. Raises `EnvironmentUnfit`."""
    return list(
        dict.fromkeys(path for each in chosen for path in fetch(each.connector.jars, f"connector {each.name!r}"))
    )


def spark_settings(chosen: Iterable[Installed]) -> dict[str, str]:
    """Return the Spark settings that the connectors need. Raises `ConfigInvalid` if two of them conflict."""
    settings: dict[str, str] = {}
    for each in chosen:
        for key, value in each.connector.settings.items():
            settings[key] = _merged(key, settings.get(key), value, each.name)
    return settings


def _merged(key: str, before: str | None, value: str, connector: str) -> str:
    if before is None or before == value:
        return value
    if key in _LISTS:
        return ",".join(dict.fromkeys([*before.split(","), *value.split(",")]))
    raise ConfigInvalid(
        f"connector {connector!r} wants {key}={value}, another one wants {before}",
        hint="use them in sessions of their own, or settle it: session(..., conf={...}) without one of their names",
    )


def _loaded(entry: EntryPoint) -> Installed:
    origin = _distribution(entry)
    try:
        loaded = entry.load()
        declared = loaded if isinstance(loaded, Connector) else getattr(loaded, ATTRIBUTE)
    except Exception as error:  # the package's own code runs here
        raise _not_imported(entry.value, error, entry.name, origin) from error
    _check(declared, entry, origin)
    version = entry.dist.version if entry.dist is not None else ""
    return Installed(declared, entry.module, origin, version)


def _check(declared: object, entry: EntryPoint, origin: str) -> None:
    """Raise unless the declaration is valid, has this name, and has a contract that this version knows."""
    where: Mapping[str, object] = {"connector": entry.name, "distribution": origin}
    if not isinstance(declared, Connector):
        wrong = f"{entry.value} gives a {type(declared).__name__}, not a spark_ckpt.connector.Connector"
    # Not isinstance: a bool is an int, too.
    elif type(declared.contract) is not int or declared.contract < 1:
        wrong = f"its contract is {declared.contract!r}, not the number of one"
    elif declared.contract > CONTRACT:
        raise ConnectorTooNew(
            f"connector {entry.name!r} was written for contract {declared.contract}, this spark_ckpt has {CONTRACT}",
            hint=f"pip install --upgrade {_OWN}, or an older {origin}",
            **where,
        )
    else:
        wrong = _misshapen(declared, entry.name)
    if wrong:
        raise ConnectorBroken(
            f"connector {entry.name!r}: {wrong}", hint=f"upgrade {origin}, or ask its authors", **where
        )


def _misshapen(declared: Connector, name: str) -> str:
    """Return a sentence about an invalid field of a declaration; empty if all are valid."""
    if declared.name != name:
        return f"its entry point is named {name!r}, its declaration {declared.name!r}"
    if not all(_are_texts(each) for each in (declared.sources, declared.sinks)):
        return "sources and sinks are tuples of names of classes"
    if not declared.sources and not declared.sinks:
        return "it has neither a source nor a sink"
    if not isinstance(declared.jars, tuple) or not all(_is_choice(each) for each in declared.jars):
        return "jars are a tuple of choices, each a sequence of spark_ckpt.jars.Jar, the best first"
    if not isinstance(declared.settings, Mapping) or not _are_texts((*declared.settings, *declared.settings.values())):
        return "settings are texts by name"
    return ""


def _are_texts(values: object) -> bool:
    return isinstance(values, tuple) and all(isinstance(each, str) for each in values)


def _is_choice(value: object) -> bool:
    return isinstance(value, Sequence) and bool(value) and all(isinstance(each, Jar) for each in value)


def _unknown(name: str) -> CkptError:
    there = ", ".join(names()) or f"none: {_OWN} itself is not installed as a package here"
    extra = name if name in _extras(_OWN) else ""
    install = f"pip install '{_OWN}[{extra}]'; then use" if extra else "pip install the package that brings it, or use"
    return ConnectorUnknown(
        f"no installed package has a connector {name!r}",
        installed=there,
        hint=f"{install} one of those installed; spark-ckpt connectors shows what each has",
    )


def _not_imported(what: str, error: Exception, name: str, origin: str) -> ConnectorBroken:
    install = f"pip install '{origin}[{name}]'" if name in _extras(origin) else f"pip install --upgrade {origin}"
    said, hint = f"{type(error).__name__}: {error}", install
    if isinstance(error, CkptError):
        said, hint = error.what, error.hint or install
    what = f"connector {name!r}: {what} cannot be imported: {said}"
    return ConnectorBroken(what, hint=hint, connector=name, distribution=origin)


def _distribution(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else "an unknown package"


def _extras(origin: str) -> list[str]:
    try:
        return distribution(origin).metadata.get_all("Provides-Extra") or []
    except PackageNotFoundError:
        return []

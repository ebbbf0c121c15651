"""`spark-ckpt connectors`: the installed sources and sinks, and their guarantees."""

from __future__ import annotations

import typer

from spark_ckpt import connectors as installed
from spark_ckpt.cli.options import AsJson
from spark_ckpt.cli.output import print_json, print_line
from spark_ckpt.connector import Json
from spark_ckpt.connectors import Installed
from spark_ckpt.errors import CkptError, ConnectorBroken


def connectors(as_json: AsJson = False) -> None:
    """List the installed connectors: version, sources, sinks, what each promises, jars. Exit code 10 if one is broken."""
    described = {name: _described(name) for name in installed.names()}
    if as_json:
        print_json({"connectors": described})
    else:
        for name, fields in described.items():
            _print(name, fields)
    if any("error" in fields for fields in described.values()):
        raise typer.Exit(ConnectorBroken.exit_code)


def _described(name: str) -> dict[str, Json]:
    try:
        return _fields(installed.named(name))
    # A broken connector does not hide the others.
    except CkptError as error:
        return {"error": {"condition": error.condition, "what": error.what, "hint": error.hint}}


def _fields(found: Installed) -> dict[str, Json]:
    return {
        "distribution": found.distribution,
        "version": found.version,
        "contract": found.connector.contract,
        "module": found.module,
        "sources": {each.__name__: installed.promises(each) for each in found.sources()},
        "sinks": {each.__name__: installed.promises(each) for each in found.sinks()},
        "jars": [str(choice[0]) for choice in found.connector.jars],
    }


def _print(name: str, fields: dict[str, Json]) -> None:
    error = fields.get("error")
    if isinstance(error, dict):
        print_line(f"{name}  [{error['condition']}] {error['what']}\n  next    {error['hint']}")
        return
    print_line(f"{name}  {fields['distribution']} {fields['version']}, contract {fields['contract']}")
    for kind in ("sources", "sinks"):
        classes = fields[kind]
        assert isinstance(classes, dict)  # noqa: S101 - as `_fields` made it
        for each, promised in classes.items():
            print_line(f"  {kind[:-1]:<6}  {fields['module']}.{each}: {', '.join(promised)}")
    jars = fields["jars"]
    assert isinstance(jars, list)  # noqa: S101 - as `_fields` made it
    print_line(f"  jars    {', '.join(jars) or 'none'}")

"""First module of every Python process that Spark starts: take PySpark from the folder in which it is compiled.

Spark puts `pyspark.zip` and py4j's zip before the packages of the environment. Python compiles a module of a zip again in
each process, which takes 0.7 s of CPU: for each reader of a source, each planner of a source, each daemon of workers.
"""
# ruff: noqa: PTH112, PTH118, PTH120
# pathlib would take 10 ms of each process.

from __future__ import annotations

import importlib
import os
import sys

HERE = os.path.dirname(os.path.realpath(__file__))


def without_zips(places: list[str]) -> list[str]:
    """Leave out the zips of a PySpark whose packages are on the path, too."""
    complete = [place for place in places if os.path.isdir(os.path.join(place, "py4j"))]
    folders = {os.path.realpath(os.path.join(place, "pyspark", "python", "lib")) for place in complete}
    return [
        each for each in places if not (each.endswith(".zip") and os.path.dirname(os.path.realpath(each)) in folders)
    ]


def run_hidden() -> None:
    """Run the environment's own `sitecustomize`, which this one hides."""
    ours = sys.modules.pop("sitecustomize")
    try:
        importlib.import_module("sitecustomize")
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = ours


if __name__ == "sitecustomize":
    sys.path[:] = [place for place in without_zips(sys.path) if os.path.realpath(place) != HERE]
    run_hidden()

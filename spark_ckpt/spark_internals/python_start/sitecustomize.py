"""First module of every Python process that Spark starts: take PySpark from the folder in which it is compiled.

Spark puts `pyspark.zip` and py4j's zip before the packages of the environment. Python compiles a module of a zip again in
each process, which takes 0.7 s of CPU: for each reader of a source, each planner of a source, each daemon of workers.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def without_zips(places: list[str]) -> list[str]:
    """Leave out the zips of a PySpark whose packages are on the path, too."""
    complete = [Path(place) for place in places if (Path(place) / "py4j").is_dir()]
    folders = {(place / "pyspark" / "python" / "lib").resolve() for place in complete}
    return [each for each in places if not (each.endswith(".zip") and Path(each).resolve().parent in folders)]


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
    sys.path[:] = [place for place in without_zips(sys.path) if Path(place).resolve() != HERE]
    run_hidden()

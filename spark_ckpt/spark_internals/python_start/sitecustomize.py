"""First module of every Python process that Spark starts: take PySpark from the folder in which it is compiled.

Spark puts `pyspark.zip`, py4j's zip and the jar of its core before the packages of the environment. Python compiles a
module of a zip again in each process, which takes 0.7 s of CPU: for each reader of a source, each planner of a source, each
daemon of workers. Each worker lets Python read the lists of all zips and jars again, which takes 80 ms of CPU, most of it
for the jar. No module comes from there.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def without_archives(places: list[str]) -> list[str]:
    """Leave out the zips and the jar of a PySpark whose packages are on the path, too."""
    complete = [Path(place) / "pyspark" for place in places if (Path(place) / "py4j").is_dir()]
    zips = {(pyspark / "python" / "lib").resolve() for pyspark in complete}
    jars = {(pyspark / "jars").resolve() for pyspark in complete}
    ours = {".zip": zips, ".jar": jars}
    return [each for each in places if Path(each).resolve().parent not in ours.get(Path(each).suffix, ())]


def run_hidden() -> None:
    """Run the environment's own `sitecustomize`, which this one hides."""
    ours = sys.modules.pop("sitecustomize")
    try:
        importlib.import_module("sitecustomize")
    except ModuleNotFoundError as error:
        # Their own, if it needs a module that is missing; else the environment has none.
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = ours


def leave_out_archives() -> None:
    """Look for no more modules in PySpark's archives, nor here."""
    kept = [place for place in without_archives(sys.path) if Path(place).resolve() != HERE]
    for place in set(sys.path) - set(kept):
        # Python opened it in the search for this module, and would read its list again.
        sys.path_importer_cache.pop(place, None)
    sys.path[:] = kept


def print_no_hang_up() -> None:
    """Let PySpark's own daemon end a worker without a traceback if Spark has closed its connection.

    Spark forks the workers of data sources in Python from it, and no setting names another daemon for these.
    """
    print_exc = traceback.print_exc

    def print_unless_hung_up(*given: Any, **named: Any) -> None:
        # Other code of a worker prints its errors as before.
        by_daemon = sys._getframe(1).f_globals.get("__name__") == "__main__"  # noqa: SLF001 - of the caller
        if not (by_daemon and isinstance(sys.exc_info()[1], BrokenPipeError | ConnectionResetError | EOFError)):
            print_exc(*given, **named)

    traceback.print_exc = print_unless_hung_up


if __name__ == "sitecustomize":
    if sys.orig_argv[1:3] == ["-m", "pyspark.daemon"]:
        print_no_hang_up()
    leave_out_archives()  # takes this folder off the path, where the next import would find it again
    run_hidden()

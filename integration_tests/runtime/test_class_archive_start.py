"""A driver really starts from the archive that `spark-ckpt prepare` makes.

The archive is created at the place where drivers look for it, so that all drivers started after this test use it, too.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from spark_ckpt.spark_session import class_archive

ROOT = Path(__file__).parents[2]
STARTS = """
import spark_ckpt
spark = spark_ckpt.session("archived", master="local[1]", conf={"spark.driver.extraJavaOptions": "-Xlog:class+load:file=%s"})
assert spark.range(3).count() == 3
"""


def inode(path):
    """Inode of a file; 0 if it does not exist."""
    return path.stat().st_ino if path.exists() else 0


@pytest.mark.spark
@pytest.mark.long
def test_a_driver_takes_its_classes_from_the_archive(tmp_path):
    log = tmp_path / "classes.log"
    before = inode(class_archive.path())

    assert inode(class_archive.create()) != before, "it is created again"
    subprocess.run([sys.executable, "-c", STARTS % log], check=True, timeout=300, cwd=ROOT)

    loaded = log.read_text().splitlines()
    archived = [line for line in loaded if "org.apache.spark" in line and "shared objects file (top)" in line]
    read = [line for line in loaded if "org.apache.spark" in line and "source: file:" in line]
    assert len(archived) > 10 * len(read)

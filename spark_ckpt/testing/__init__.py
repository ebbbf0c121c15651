"""Conformance suites for sources and sinks: pytest classes that check the promises of `spark_ckpt.connector`.

Derive a class from `SourceConformance` or `SinkConformance` and give it a fixture `subject`.
`docs/writing-a-connector.md` shows both. Nothing here imports pytest before a test runs.
"""

from spark_ckpt.testing.promises import PromiseBroken
from spark_ckpt.testing.reading import PythonReading, Reading, SparkReading
from spark_ckpt.testing.sink_subject import SinkSubject
from spark_ckpt.testing.sinks import SinkConformance
from spark_ckpt.testing.sources import SourceConformance, SourceSubject

__all__ = [
    "PromiseBroken",
    "PythonReading",
    "Reading",
    "SinkConformance",
    "SinkSubject",
    "SourceConformance",
    "SourceSubject",
    "SparkReading",
]

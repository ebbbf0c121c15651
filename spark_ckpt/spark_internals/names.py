"""Record of a private name: its place in Spark, its user, and the effect of its loss."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SparkName:
    """A name that Spark may change without notice.

    - `name`: the name as it is written, with its class.
    - `lives_in`: class or module, and the file of Spark's source.
    - `used_by`: the function of this package that uses it.
    - `breaks`: the user-visible effect if it is missing.
    - `seen_in`: version of Spark in which it was found.
    """

    name: str
    lives_in: str
    used_by: str
    breaks: str
    seen_in: str = "4.2.0"

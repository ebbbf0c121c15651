"""What is known of a private name: where it was seen, who uses it, what breaks without it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SparkName:
    """A name that Spark may change without a word.

    `name`: as it is written, with the class it belongs to. `lives_in`: class or module, and the file of Spark's source.
    `used_by`: the function of this package that uses it. `breaks`: what a user would lose.
    """

    name: str
    lives_in: str
    used_by: str
    breaks: str
    seen_in: str = "4.2.0"

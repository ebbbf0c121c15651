"""The judge condemns every fault: a lost, repeated or changed row, an error without a type, advice that does not work."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from integration_tests.campaign.hazards.verdicts import Rows, Scene, Unnoticed, Verdict, Way, judged
from spark_ckpt.errors import CkptError, PublishConflict, RunFailed, SinkInvalid

WANTED: Rows = Counter({("a", 1): 1, ("b", 2): 2})
REFUSED = PublishConflict("the table has lost epochs", hint="bring the table back, or job.start(restore=3)")


class Played(Scene):
    """A scene in memory. `raises`: errors of the first run and of the later runs; `rows`: the final output of readers."""

    kind = "played"

    def __init__(
        self,
        rows: Rows,
        raises: Sequence[Exception | None] = (None,),
        says: str = r"bring the table back",
        meanwhile: Rows | None = None,
    ) -> None:
        self._rows, self._raises, self._says = rows, list(raises), says
        self._meanwhile = Counter() if meanwhile is None else meanwhile
        self.followed = 0

    def act(self) -> None:
        error = self._raises.pop(0)
        if error is not None:
            raise error

    def wanted(self) -> Rows:
        return WANTED

    def visible(self) -> Rows:
        return self._meanwhile if self._raises else self._rows

    def ways(self) -> Sequence[Way]:
        def follow(error: CkptError, found: re.Match[str]) -> None:
            self.followed += 1
            self.act()

        return [Way("bring back", self._says, follow)]


def verdict(scene: Scene) -> Verdict:
    return judged(scene, random.Random(1)).verdict


def test_the_exact_output_is_right() -> None:
    assert verdict(Played(WANTED)) is Verdict.RIGHT


def test_a_refusal_whose_advice_leads_to_the_exact_output_is_recovered() -> None:
    scene = Played(WANTED, [REFUSED, None])

    judgement = judged(scene, random.Random(1))

    assert judgement.verdict is Verdict.RECOVERED
    assert judgement.why == ""
    assert judgement.followed == ("CKPT_PUBLISH_CONFLICT: bring back",)


@pytest.mark.parametrize("after", [[None], [REFUSED, None]], ids=["at once", "after the advice"])
@pytest.mark.parametrize(
    ("change", "figure"),
    [
        (lambda rows: rows - Counter({("a", 1): 1}), "lost"),
        (lambda rows: rows + Counter({("a", 1): 1}), "duplicated"),
        (lambda rows: rows - Counter({("a", 1): 1}) + Counter({("a", 2): 1}), "wrong"),
    ],
    ids=["lost", "repeated", "changed"],
)
def test_a_lost_a_repeated_or_a_changed_row_is_condemned(
    change: Callable[[Rows], Rows], figure: str, after: list[Exception | None]
) -> None:
    judgement = judged(Played(change(WANTED), list(after)), random.Random(1))

    assert judgement.verdict is Verdict.WRONG
    assert judgement.figures[figure] == 1
    assert judgement.why


def test_a_wrong_row_that_is_visible_while_the_job_is_refused_is_condemned() -> None:
    scene = Played(WANTED, [REFUSED, None], meanwhile=Counter({("c", 3): 1}))

    assert verdict(scene) is Verdict.WRONG


def test_output_that_cannot_be_read_is_condemned(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(self: Played) -> Rows:
        raise OSError("the table cannot be read")

    monkeypatch.setattr(Played, "visible", unreadable)

    assert verdict(Played(WANTED)) is Verdict.WRONG


@pytest.mark.parametrize(
    "error",
    [
        KeyError("seq"),
        TimeoutError("the drain does not end within 240 s"),
        RunFailed("AssertionError: assertion failed: you must specify all TopicPartitions"),
        RunFailed("2 incarnations in a row failed without a new epoch; the last: _csv.Error: new-line character seen"),
    ],
    ids=["a library's", "no end", "a library's inside", "a library's, tried several times"],
)
def test_an_error_without_a_type_is_condemned(error: Exception) -> None:
    assert verdict(Played(WANTED, [error])) is Verdict.UNTYPED


def test_an_error_without_a_type_after_the_advice_is_condemned() -> None:
    assert verdict(Played(WANTED, [REFUSED, KeyError("seq")])) is Verdict.UNTYPED


@pytest.mark.parametrize(
    "error",
    [
        SinkInvalid("the column is of another type"),
        PublishConflict("the marker is gone", hint="the next start publishes the rows"),
    ],
    ids=["no advice", "advice without an action"],
)
def test_an_error_that_names_no_action_is_condemned(error: Exception) -> None:
    assert verdict(Played(WANTED, [error])) is Verdict.NO_WAY


def test_advice_that_leads_to_the_same_error_is_condemned() -> None:
    scene = Played(WANTED, [REFUSED] * 9)

    assert verdict(scene) is Verdict.NO_WAY
    assert scene.followed == 3


def test_a_command_that_calls_the_damage_whole_is_condemned() -> None:
    assert verdict(Played(WANTED, [Unnoticed("verify ends with 0")])) is Verdict.WRONG


def test_the_text_of_an_error_may_break_its_lines_anywhere() -> None:
    scene = Played(WANTED, [PublishConflict("lost", hint="stop the job,\n  bring the\n  table back"), None])

    assert verdict(scene) is Verdict.RECOVERED

"""An oracle, a machine or a typed error condemns a schedule. Any other exception fails the measurement of planted bugs."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from types import CodeType, FunctionType

import pytest
from host_bugs import PLANTED, core_with
from spark_lives import run

import checkpoint_lab as sim
from checkpoint_lab.violations import Lost
from checkpoint_protocols.machine import ProtocolViolation
from integration_tests.proof.caught import seeds_until
from spark_ckpt.errors import CkptError
from tests.protocol import literal, test_line_bugs, test_snapshot_bugs
from tests.simulator import driver_bugs, holding_bugs, planted, return_bugs, surroundings_bugs


def outcome(error: Exception | None) -> sim.ScheduleOutcome:
    return sim.ScheduleOutcome(0, (), error, {})


@pytest.mark.parametrize("error", [Lost("a row"), ProtocolViolation("not now"), CkptError("an epoch")])
def test_an_oracle_a_machine_and_a_typed_error_condemn(error):
    assert outcome(error).condemned
    assert not outcome(None).condemned


@pytest.mark.parametrize("error", [AttributeError("renamed"), TypeError(), KeyError(1), ValueError(), AssertionError()])
def test_any_other_error_is_raised(error):
    with pytest.raises(type(error)):
        assert outcome(error).condemned


def calls_a_method_that_was_renamed(core):
    core.on_batch_done = lambda event: core.renamed_away(event)


def sets_a_method_that_was_renamed(core):
    core.renamed_away = lambda event: []


def sets_a_method_of_a_part_that_was_renamed(core):
    core.cut.builder.taken_again = lambda epoch: None


@pytest.mark.parametrize(
    "plant",
    [calls_a_method_that_was_renamed, sets_a_method_that_was_renamed, sets_a_method_of_a_part_that_was_renamed],
)
def test_a_bug_planted_on_a_missing_name_is_an_error(plant):
    with pytest.raises(AttributeError):
        seeds_until(lambda seed: run(seed, core_with(plant)).condemned)


def test_a_bug_planted_on_an_existing_name_is_counted():
    assert seeds_until(lambda seed: run(seed, core_with(PLANTED[0])).condemned)


# -- plantings by subclass ----------------------------------------------------------------------------------------------

COLLECTIONS = (
    driver_bugs, holding_bugs, planted, return_bugs, surroundings_bugs, test_line_bugs, test_snapshot_bugs,
    *(import_module(each.name) for each in iter_modules(literal.__path__, f"{literal.__name__}.")),
)  # fmt: skip


def names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from names_in(inner)


def unused_methods(kind: type) -> set[str]:
    """Methods that override none of a base, and that neither the class nor its table uses."""
    own = {name: each for name, each in vars(kind).items() if isinstance(each, FunctionType)}
    used = {name for method in own.values() for name in names_in(method.__code__)}
    used |= {cell for cell in getattr(kind, "TABLE", {}).values() if isinstance(cell, str)}
    inherited = {name for base in kind.__mro__[1:] for name in vars(base)}
    return {*own} - used - inherited


@pytest.mark.parametrize("module", COLLECTIONS, ids=lambda module: module.__name__)
def test_every_method_of_a_planted_class_overrides_an_existing_one(module):
    own = [each for each in vars(module).values() if isinstance(each, type) and each.__module__ == module.__name__]
    planted_in = [kind for kind in own if kind.__mro__[1] is not object]
    assert {kind.__name__: found for kind in planted_in if (found := unused_methods(kind))} == {}


class NamesWhatWasRenamed(sim.MessageWorld):
    def fence_of_old(self):
        return None


def test_a_method_that_overrides_none_is_found():
    assert unused_methods(NamesWhatWasRenamed) == {"fence_of_old"}

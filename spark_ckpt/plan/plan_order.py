"""Spark's numbering of a query's inputs: one number per place where the plan reads a stream, from the left.

A plan reads the control source once per operator, left of the operator's input; a job without an operator reads it
once. It reads a source once per branch that begins at it, always up to the same position. Offsets and limits of a
source use its number; metadata uses the order in which Spark meets each source first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from spark_ckpt.plan.graph import (
    EdgeNode,
    Node,
    OperatorNode,
    SourceNode,
    SparkNode,
    UnionNode,
    heads_of,
    operators_of,
)

Input = SourceNode | EdgeNode | None
Each = TypeVar("Each")


@dataclass(frozen=True, slots=True)
class PlanOrder:
    """Inputs of a plan by number; None is the control source."""

    inputs: tuple[Input, ...]

    @classmethod
    def of(cls, *ends: Node) -> PlanOrder:
        """Return the order of the query whose streams end in `ends`."""
        return cls(
            (*([] if operators_of(*ends) else [None]), *(each for head in heads_of(ends) for each in _read(head)))
        )

    @property
    def once(self) -> tuple[Input, ...]:
        """Every input once, in the order of its first number."""
        return tuple(dict.fromkeys(self.inputs))

    @property
    def numbers(self) -> list[int]:
        """The first number of each source of the job, in the order of `sources_of`."""
        return [self.inputs.index(source) for source in self.once if isinstance(source, SourceNode)]

    @property
    def edges(self) -> dict[str, int]:
        """The first number of each edge, by name."""
        return {each.name: self.inputs.index(each) for each in self.once if isinstance(each, EdgeNode)}

    @property
    def sources(self) -> tuple[SourceNode | None, ...]:
        """Sources of the job by number; None for other inputs."""
        return tuple(each if isinstance(each, SourceNode) else None for each in self.inputs)

    @property
    def control(self) -> int:
        """The first number of the control source."""
        return self.inputs.index(None)  # all its readers are at one position

    def of_sources(self, by_number: Sequence[Each]) -> list[Each]:
        """Select the items of the job's sources. Raises `IndexError` if the plan has fewer inputs."""
        return [by_number[number] for number in self.numbers]


def _read(node: Node) -> Iterator[Input]:
    match node:
        case SourceNode() | EdgeNode():
            yield node
        case OperatorNode():
            # The control source stands left of the operator's input in the plan, so Spark numbers it first.
            yield None
            yield from _read(node.parent)
        case UnionNode() | SparkNode():
            for parent in node.parents:
                yield from _read(parent)
        case _:
            yield from _read(node.parent)

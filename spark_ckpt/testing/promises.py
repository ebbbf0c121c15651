"""Assertions of the suite: an error names the broken promise and the observed facts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from spark_ckpt.errors import CkptError

Row = Mapping[str, object]


class PromiseBroken(AssertionError):
    """A connector breaks a promise of `spark_ckpt.connector`. The text has the promise, then the observed facts."""


def require(kept: bool, promise: str, **seen: object) -> None:
    """Raise `PromiseBroken` unless the promise is kept. `seen`: facts that explain the failure to the author."""
    if not kept:
        raise PromiseBroken("\n".join([promise, *(f"  {name}: {value}" for name, value in seen.items())]))


def require_rows(found: Iterable[Row], expected: Iterable[Row], promise: str, **seen: object) -> None:
    """Require the same rows, each as often, in any order. Columns that no expected row has are not compared."""
    wanted = list(expected)
    columns = sorted({name for row in wanted for name in row})
    there, due = (_counted(rows, columns) for rows in (found, wanted))
    missing, more = list((due - there).elements()), list((there - due).elements())
    require(not missing and not more, promise, **seen, missing=missing[:5], too_many=more[:5])


def _counted(rows: Iterable[Row], columns: list[str]) -> Counter[tuple[tuple[str, str], ...]]:
    # If no row is expected, compare all columns, so that an extra row is detected.
    # Values as text: some cannot be hashed, and NaN is equal to itself.
    return Counter(tuple((name, repr(row.get(name))) for name in columns or sorted(row)) for row in rows)


@contextmanager
def refused(kinds: type[CkptError] | tuple[type[CkptError], ...], promise: str) -> Iterator[None]:
    """Require that the body raises one of these errors."""
    expected = kinds if isinstance(kinds, tuple) else (kinds,)
    try:
        yield
    except expected:
        return
    except Exception as error:
        raise PromiseBroken(f"{promise}\n  raised: {type(error).__name__}: {error}") from error
    names = " or ".join(kind.__name__ for kind in expected)
    raise PromiseBroken(f"{promise}\n  expected: {names}\n  raised: nothing")


def require_described(texts: Mapping[str, str], secrets: Iterable[str], promise: str) -> None:
    """Require texts by name, none of which shows a secret."""
    require(isinstance(texts, Mapping) and bool(texts), promise, found=texts)
    require(all(isinstance(each, str) for pair in texts.items() for each in pair), promise, found=texts)
    shown = [name for name, text in texts.items() if any(secret in text for secret in secrets)]
    require(not shown, promise, shows_a_secret=shown)


def skip(why: str) -> None:
    """Skip the running test."""
    # Imported here, so that only the suite needs pytest.
    import pytest

    pytest.skip(why)

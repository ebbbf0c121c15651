"""Claims of the demo, checked against the oracle: outputs row by row, state aircraft by aircraft."""

from __future__ import annotations

import pandas as pd
import pyarrow as pa

from spark_ckpt_demo import oracle
from spark_ckpt_demo.oracle import Comparison

_STATE = ["departures", "delay_minutes", "late_chain", "longest_late_chain"]


def whole_output(expected: pd.DataFrame, found: pd.DataFrame) -> Comparison:
    """Check that the output has every flight once, with the aircraft's right figures as of this flight."""
    return oracle.compare(expected, found)


def some_output(expected: pd.DataFrame, found: pd.DataFrame) -> Comparison:
    """Check that the output has a prefix of each aircraft's flights, each once, with the right figures."""
    count = expected["tailnum"].map(found["tailnum"].value_counts()).fillna(0)
    return oracle.compare(expected[expected["flights"] <= count], found)


def state(expected: pd.DataFrame, found: pd.DataFrame, flights: int) -> Comparison:
    """Check that each aircraft's state follows some prefix of its flights, and that the prefixes add up to `flights`.

    `found`: tailnum, flights and the state's other columns. A wrong sum counts as one row that differs.
    """
    reached = expected.merge(found[["tailnum", "flights"]], on=["tailnum", "flights"])
    result = oracle.compare(reached, found, ["tailnum", "flights"], _STATE)
    counted = int(found["flights"].sum())
    if counted == flights:
        return result
    why = f"different: {counted:,} flights in the state, {flights:,} in the epochs up to this one"
    return Comparison(
        result.expected,
        result.found,
        result.missing,
        result.duplicated,
        result.unexpected,
        result.different + 1,
        [*result.examples, why],
    )


def output_after(expected: pd.DataFrame, at_restore: pd.DataFrame, found: pd.DataFrame) -> Comparison:
    """Check that the output has exactly the flights after the restored state, each once, with the right figures."""
    done = expected["tailnum"].map(at_restore.set_index("tailnum")["flights"]).fillna(0)
    return oracle.compare(expected[expected["flights"] > done], found)


def frame(state_table: pa.Table) -> pd.DataFrame:
    """Return state as a frame; an empty state has the columns, too."""
    columns = ["tailnum", "flights", *_STATE]
    if not state_table.num_rows:
        return pd.DataFrame({name: pd.Series(dtype="object" if name == "tailnum" else "int64") for name in columns})
    found: pd.DataFrame = state_table.select(columns).to_pandas()
    return found

"""All ported programs by name."""

from __future__ import annotations

from collections.abc import Mapping

from integration_tests.ported import devices, event_time, keyed, layers, tables, word_counts
from integration_tests.ported.program import Ported

PROGRAMS: Mapping[str, Ported] = {
    each.name: each for module in (word_counts, event_time, keyed, tables, layers, devices) for each in module.PROGRAMS
}

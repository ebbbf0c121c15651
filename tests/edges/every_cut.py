"""The greatest consistent cut by brute force, to compare with the search for a line."""

from __future__ import annotations

from itertools import product

from spark_ckpt.epochs.lines import Programs


def is_consistent(programs: Programs, cut: dict[str, int]) -> bool:
    """The definition: no program has read an unsent row, and no row in transit is deleted."""
    for name, reader in programs.items():
        taken = reader.at(cut[name])
        for source, each in reader.inputs.items():
            read, sent = taken.read.get(source, 0), cut[each.sender]
            if read > sent or (read < each.deleted and sent > read):
                return False
    return True


def brute_force(programs: Programs, limits: dict[str, int]) -> dict[str, int] | None:
    """The greatest of all consistent cuts within the limits."""
    choices = [
        [each.epoch for each in program.epochs if each.epoch <= limits.get(name, each.epoch)]
        for name, program in programs.items()
    ]
    cuts = [dict(zip(programs, epochs, strict=True)) for epochs in product(*choices)]
    good = [cut for cut in cuts if is_consistent(programs, cut)]
    if not good:
        return None
    best = {name: max(cut[name] for cut in good) for name in programs}
    assert best in good, "consistent cuts are a lattice"
    return best

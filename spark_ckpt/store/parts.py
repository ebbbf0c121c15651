"""Identities as connectors tell them, part by part: compared, and in words. Pure."""

from __future__ import annotations

from collections.abc import Mapping


def differing(known: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """The parts that contradict: known and now missing or another. What was never known contradicts nothing."""
    return [name for name, value in known.items() if name not in found or (value and found[name] != value)]


def described(parts: Mapping[str, str]) -> str:
    """An identity in words."""
    return (
        ", ".join(f"{name} {value or '(none yet)'}" for name, value in parts.items()) or "a connector without identity"
    )

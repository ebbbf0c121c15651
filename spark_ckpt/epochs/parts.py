"""Comparison and description of endpoint identities, part by part. Pure."""

from __future__ import annotations

from collections.abc import Mapping


def differing(known: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """Return the names of parts that contradict: known before, and now missing or different.

    An unknown part contradicts nothing.
    """
    return [name for name, value in known.items() if name not in found or (value and found[name] != value)]


def described(parts: Mapping[str, str]) -> str:
    """Return an identity as text for messages."""
    return (
        ", ".join(f"{name} {value or '(none yet)'}" for name, value in parts.items()) or "a connector without identity"
    )

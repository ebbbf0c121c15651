"""The published algorithms as printed: each reverts one erratum of a corrected machine and keeps the rest."""

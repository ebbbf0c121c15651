"""The published algorithms as they are written: each reverts one erratum of a corrected machine, and nothing else."""

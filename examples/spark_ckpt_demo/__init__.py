"""The demo: a year of flights as a stream, a driver that is killed, an independent proof, a restore.

`driver` and `figures` are an ordinary program that uses spark_ckpt. `oracle` recomputes its result with plain pandas
and shares no code with the rest. `story` runs all of it.
"""

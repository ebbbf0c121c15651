"""The demo: a year of flights as a stream, a driver that is killed, an independent proof, a way back in time.

`driver` and `figures` are an ordinary program that uses spark_ckpt; `oracle` recomputes its result with plain pandas
and shares no code with anything else; `story` plays it all.
"""

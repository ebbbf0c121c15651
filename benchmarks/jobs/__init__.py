"""Jobs, one file each: what every system must put out, and how each system is told to.

Input records: Kafka key `key`, value `key,n,amount,event_ms`; `n` counts the key's records from 1 and is for the oracle, the
job may not use it; a key's records are in one partition, in order. Output records: value `key,n,rest`, Kafka key `key` where the
system can write one; `n` says which input of the key it answers.

A job's file has `expected(inputs)`, the rest of each input's output, computed without any of the systems, and one
function or text per system (`System.hook`); without it that system does not run the job. Only the standard library may be
imported at its top: each system's environment has its own packages only.

NEXMark's queries (`nexmark_q*.py`) have a topic of their own (`benchmarks.nexmark.events`): their `expected(events)` is the rows of
the answer, `COLUMNS` its columns, and their functions get the topic's records as they are and return the rows of the answer.
"""

"""Jobs, one file each: the output that every system must emit, and the code or text that runs the job in each system.

Input records: Kafka key `key`, value `key,n,amount,event_ms`. `n` counts the key's records from 1; it is for the oracle, and the
job may not use it. All records of a key are in one partition, in order. Output records: value `key,n,rest`, Kafka key `key` if
the system can write one; `n` names the input of the key that the record answers.

A job's file has `expected(inputs)`, the rest of each input's output, computed without any of the systems. It has one function or
text per system (`System.hook`); a system without one does not run the job. Only the standard library may be imported at its top:
each system's environment has its own packages only.

NEXMark's queries (`nexmark_q*.py`) have a topic of their own (`benchmarks.nexmark.events`): their `expected(events)` is the rows of
the answer, `COLUMNS` its columns. Their functions get the topic's records unchanged and return the rows of the answer.
"""

"""Events of a run or an outbox for programs: their types, and the announcer that hands them to listeners."""

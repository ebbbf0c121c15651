----------------------- MODULE TraceCheckpointLease -----------------------
\* Are schedules of the Python machines (RecordedLease, written by a test) behaviours of CheckpointLease?
\* A recorded step that no action allows, or after which the machines show something else, is a deadlock.
EXTENDS CheckpointLease, RecordedLease

VARIABLES trace, position  \* the schedule, and how much of it is done

Rates == [a |-> 1, b |-> 1, c |-> 1]

Act(s) ==
  CASE s.act = "elect" -> Elect(s.n)
    [] s.act = "hear" -> Hear(s.n)
    [] s.act = "issue" -> Issue(s.n)
    [] s.act = "execute" -> Execute(s.n)
    [] s.act = "start" -> Start(s.n)
    [] s.act = "write" -> Write(s.n)
    [] s.act = "elapse" -> Elapse(s.n)
    [] s.act = "crash" -> Crash(s.n)
    [] s.act = "recover" -> Recover(s.n)
    [] s.act = "pass" -> Pass(s.k)
    [] s.act = "land" -> \E u \in uploads : u.node = s.n /\ u.token = s.k /\ Land(u, TRUE)
    [] s.act = "lost" -> \E u \in uploads : u.node = s.n /\ u.token = s.k /\ Land(u, FALSE)
    [] s.act = "return" -> Return(s.n)
    [] s.act = "returned" -> HearReturn(s.k, FALSE)
    [] s.act = "returned first" -> HearReturn(s.k, TRUE)
    [] s.act = "gone" -> Gone
    [] s.act = "answer" -> UNCHANGED vars

Shown(s) ==
  s.shows => /\ leader' = s.seen.leader /\ exec' = s.seen.exec /\ phase' = s.seen.phase
             /\ payload' = s.seen.payload /\ Len(log') = s.seen.entries
             /\ published' = s.seen.tokens

TraceInit == Init /\ position = 0 /\ trace \in 1 .. Len(Traces)

TraceNext ==
  \/ /\ position < Len(Traces[trace])
     /\ position' = position + 1 /\ trace' = trace
     /\ Act(Traces[trace][position + 1]) /\ Shown(Traces[trace][position + 1])
  \/ position = Len(Traces[trace]) /\ UNCHANGED <<vars, trace, position>>

TraceSpec == TraceInit /\ [][TraceNext]_<<vars, trace, position>>
=============================================================================

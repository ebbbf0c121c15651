------------------------ MODULE TraceCyclicSnapshot ------------------------
\* Are schedules of the Python machines (RecordedCycles, written by a test) behaviours of CyclicSnapshot?
\* A recorded step that no action allows, or after which the machines show something else, is a deadlock.
EXTENDS CyclicSnapshot, RecordedCycles

VARIABLES trace, position  \* the schedule, and how much of it is done

Act(s) ==
  CASE s.act = "read" -> Read
    [] s.act = "new" -> TakeNew
    [] s.act = "pass" -> PassOn(s.n)
    [] s.act = "back" -> TakeBack(s.n)
    [] s.act = "begin" -> Begin
    [] s.act = "source" -> BarrierAtSource
    [] s.act = "head" -> BarrierAtHead
    [] s.act = "loop" -> BarrierInLoop(s.n)
    [] s.act = "around" -> BarrierBack(s.n)
    [] s.act = "complete" -> Complete
    [] s.act = "restore" -> Restore
    [] s.act = "succeed" -> Succeed

\* The machine drops its log once it is written: from then on it shows in what is complete.
Logging(seen) == seen.logging => log' = seen.log /\ marked' = seen.marked

Decided(seen) ==
  /\ complete'.copy["s"].cursor = seen.complete.cursor
  /\ \A p \in Task : complete'.copy[p].have = seen.complete.have[p]
  /\ complete'.log = seen.complete.log

Shown(s) ==
  s.shows => /\ cursor' = s.seen.cursor /\ have' = s.seen.have /\ open' = s.seen.open
             /\ \A e \in Ends : chan'[e] = s.seen.chan[e[1]][e[2]]
             /\ open' # 0 => DOMAIN copy' = s.seen.copied
             /\ Logging(s.seen) /\ Decided(s.seen)

TraceInit == Init /\ position = 0 /\ trace \in 1 .. Len(Traces)

TraceNext ==
  \/ /\ position < Len(Traces[trace])
     /\ position' = position + 1 /\ trace' = trace
     /\ Act(Traces[trace][position + 1]) /\ Shown(Traces[trace][position + 1])
  \/ position = Len(Traces[trace]) /\ UNCHANGED <<vars, trace, position>>

TraceSpec == TraceInit /\ [][TraceNext]_<<vars, trace, position>>
=============================================================================

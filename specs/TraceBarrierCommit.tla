------------------------- MODULE TraceBarrierCommit -------------------------
\* Are schedules of the Python machines (RecordedBarriers, written by a test) behaviours of BarrierCommit?
\* A recorded step that no action allows, or after which the machines show something else, is a deadlock.
EXTENDS BarrierCommit, RecordedBarriers

VARIABLES trace, position  \* the schedule, and how much of it is done

Act(s) ==
  CASE s.act = "read" -> Read(s.n)
    [] s.act = "begin" -> Begin
    [] s.act = "barrier" -> Barrier(s.n)
    [] s.act = "take row" -> TakeRow(s.n)
    [] s.act = "take barrier" -> TakeBarrier(s.n)
    [] s.act = "store" -> \E w \in writing : w.who = s.n /\ w.inc = inc /\ Store(w)
    [] s.act = "decide" -> Decide
    [] s.act = "publish" -> Publish
    [] s.act = "crash" -> Crash

\* A task shows its state while it lives in the newest life.
Joined(view) ==
  /\ \A p \in Src \cap view.joined : cursor'[p] = view.cursor[p]
  /\ Sink \in view.joined => got' = view.got /\ done' = view.done /\ blocked' = view.blocked
  /\ view.coordinated => open' = view.open

Stored(view) ==
  /\ {<<w.who, w.epoch>> : w \in {x \in durable' : x.inc = inc'}} = view.stored
  /\ decided' = view.decided /\ settled' = view.settled /\ visible' = view.visible
  /\ TakenOf(decided)' = view.taken
  /\ \A p \in Src : CursorOf(p, decided)' = view.read[p]

Shown(s) == s.shows => inc' = s.seen.inc /\ chan' = s.seen.chan /\ Joined(s.seen) /\ Stored(s.seen)

TraceInit == Init /\ position = 0 /\ trace \in 1 .. Len(Traces)

TraceNext ==
  \/ /\ position < Len(Traces[trace])
     /\ position' = position + 1 /\ trace' = trace
     /\ Act(Traces[trace][position + 1]) /\ Shown(Traces[trace][position + 1])
  \/ position = Len(Traces[trace]) /\ UNCHANGED <<vars, trace, position>>

TraceSpec == TraceInit /\ [][TraceNext]_<<vars, trace, position>>
=============================================================================

----------------------- MODULE TracePartialRecovery -----------------------
\* Are schedules of the Python machines (RecordedRecoveries, written by a test) behaviours of PartialRecovery?
\* A recorded step that no action allows, or after which the machines show something else, is a deadlock.
EXTENDS PartialRecovery, RecordedRecoveries

VARIABLES trace, position  \* the schedule, and how much of it is done

\* Tasks by their names, one after the other.
Named(gone) == LET Of(p) == IF p \in gone THEN p ELSE "" IN Of("s") \o Of("t") \o Of("m") \o Of("x") \o Of("y")

\* A process that does its part of a recovery changes nothing: it was counted as being there when the recovery was decided.
Act(s) ==
  CASE s.act = "read" -> Read(s.n)
    [] s.act = "drop" -> DropAtMerge(s.n)
    [] s.act = "deliver" -> Deliver(s.n)
    [] s.act = "take" -> Take(s.n)
    [] s.act = "begin" -> Begin
    [] s.act = "copy" -> BarrierAtSource(s.n)
    [] s.act = "barrier" -> IF s.n \in Source THEN BarrierAtMerge(s.n) ELSE BarrierAtSink(s.n)
    [] s.act = "refuse" -> Refuse
    [] s.act = "complete" -> Complete
    [] s.act = "give up" -> GiveUp
    [] s.act = "fail" -> \E gone \in SUBSET Task : Named(gone) = s.n /\ Fail(gone)
    [] s.act = "join" -> UNCHANGED vars

Decided(c) ==
  [cursor |-> [p \in Source |-> c[p].cursor[p]], got |-> c["m"].got, sent |-> c["m"].sent,
   have |-> [p \in Sink |-> c[p].have[p]]]

\* Of the order only what the newest snapshot has is erased.
Written(kept) ==
  LET places == {<<i, order'[i]>> : i \in DOMAIN order'}
      base == complete'["m"].got IN
  kept \subseteq places /\ \A place \in places \ kept : place[1] <= base["s"] + base["t"]

\* What a step does not show is as it was.
Is(seen, name, now, before) == now = IF name \in DOMAIN seen THEN seen[name] ELSE before

Shown(s) ==
  s.shows => /\ Is(s.seen, "cursor", cursor', cursor) /\ Is(s.seen, "got", got', got)
             /\ Is(s.seen, "sent", sent', sent)
             /\ \A p \in Sink : Is(s.seen, "have_" \o p, have'[p], have[p])
             /\ \A e \in Ends : Is(s.seen, "chan_" \o e[1] \o e[2], chan'[e], chan[e])
             /\ Is(s.seen, "open", open', open) /\ Is(s.seen, "marked", marked', marked)
             /\ Is(s.seen, "copied", DOMAIN copy', DOMAIN copy)
             /\ Is(s.seen, "complete", Decided(complete'), Decided(complete))
             /\ IF "order" \in DOMAIN s.seen THEN Written(s.seen.order) ELSE order' = order

TraceInit == Init /\ position = 0 /\ trace \in 1 .. Len(Traces)

TraceNext ==
  \/ /\ position < Len(Traces[trace])
     /\ position' = position + 1 /\ trace' = trace
     /\ Act(Traces[trace][position + 1]) /\ Shown(Traces[trace][position + 1])
  \/ position = Len(Traces[trace]) /\ UNCHANGED <<vars, trace, position>>

TraceSpec == TraceInit /\ [][TraceNext]_<<vars, trace, position>>
=============================================================================

---------------------------- MODULE TraceEpochs ----------------------------
\* Are schedules of the Python machines (RecordedEpochs, written by a test) behaviours of Epochs?
\* A recorded step that no action allows, or after which the machines show something else, is a deadlock.
EXTENDS Epochs, Sequences, TLC, RecordedEpochs

VARIABLES trace, position  \* the schedule, and how much of it is done

Named(who, number) == who \o ToString(number)

\* The coordinator hears that one more is logged, not which: they are the same to it.
Untold(x, p) == {m \in log[x] \ late[x] : m.to = p}

Act(s) ==
  CASE s.act = "read" -> Read
    [] s.act = "take" -> \E m \in chan : Named(m.from, m.number) = s.n /\ Take(m)
    [] s.act = "begin" -> Begin
    [] s.act = "request" -> \E p \in Proc : \E x \in begun : Named(p, x) = s.n /\ Request(p, x)
    [] s.act = "report" -> \E p \in Proc : \E x \in open : Named(p, x) = s.n /\ HearReport(x, p)
    [] s.act = "late" -> \E p \in Proc : \E x \in open :
         Named(p, x) = s.n /\ Untold(x, p) # {} /\ HearLate(x, CHOOSE m \in Untold(x, p) : TRUE)
    [] s.act = "decide" -> \E x \in open : Named("", x) = s.n /\ Decide(x)
    [] s.act = "restore" -> Restore
    [] s.act = "succeed" -> Succeed

Decided(seen) ==
  /\ complete'.id = seen.id
  /\ \A p \in Proc : complete'.copy[p] = seen.copy[p]
  /\ complete'.log = seen.log

Shown(s) ==
  s.shows => /\ cursor' = s.seen.cursor /\ have' = s.seen.have /\ epoch' = s.seen.epoch
             /\ balance' = s.seen.balance /\ chan' = s.seen.chan /\ open' = s.seen.open
             /\ Decided(s.seen.complete)

TraceInit == Init /\ position = 0 /\ trace \in 1 .. Len(Traces)

TraceNext ==
  \/ /\ position < Len(Traces[trace])
     /\ position' = position + 1 /\ trace' = trace
     /\ Act(Traces[trace][position + 1]) /\ Shown(Traces[trace][position + 1])
  \/ position = Len(Traces[trace]) /\ UNCHANGED <<vars, trace, position>>

TraceSpec == TraceInit /\ [][TraceNext]_<<vars, trace, position>>
=============================================================================

------------------------------- MODULE Epochs -------------------------------
(***************************************************************************)
(* Snapshots by epochs (seed 000; Mattern; Lai and Yang), as               *)
(* checkpoint_protocols/snapshots/epochs.py has them, for                   *)
(*                                                                         *)
(*     s -> a -> b -> a                                                    *)
(*                                                                         *)
(* Channels keep no order, and nothing ever waits.  A message carries its  *)
(* sender's epoch.  Whoever meets a newer epoch, in a message or in the    *)
(* coordinator's request, copies its state first.  A message of an older   *)
(* epoch was in flight: it is logged for each open epoch between the two.  *)
(* An epoch is complete when everybody has reported, and the sum of        *)
(* messages sent less messages received is what was logged.                *)
(*                                                                         *)
(* The machine counts by stamp and reports the sum over older stamps.      *)
(* That is the sum over all, the one number here: who copies for an epoch  *)
(* has neither sent nor received a message of it.                          *)
(*                                                                         *)
(* Rows: s reads 1 .. MaxRows; a sends each row of s to b; b sends it      *)
(* back, and a keeps it.                                                   *)
(***************************************************************************)
EXTENDS Integers, FiniteSets

CONSTANTS MaxRows, MaxEpoch, MaxOpen, MaxFault, Mutant

Proc == {"s", "a", "b"}

VARIABLES
  chan,      \* messages in flight: [from, to, number, stamp]
  cursor,    \* rows that s has read
  have,      \* per process: the rows it has taken, from whom
  epoch,     \* per process: the newest epoch that it has copied its state for
  balance,   \* per process: messages sent less messages received
  next,      \* newest id; ids are never used again
  begun,     \* epochs begun in this life of the coordinator: requests are on the way to who has not copied
  open,      \* those under way
  copy,      \* per open epoch and process: its state before the epoch, or nothing
  log,       \* per open epoch: messages in flight across it
  heard,     \* per open epoch: whose reports the coordinator has; what they report is durable
  late,      \* per open epoch: which logged messages it has heard of; they are durable
  complete,  \* the newest decided epoch: [id, copy, log]
  faults     \* returns, new coordinators, epochs given up

vars == <<chan, cursor, have, epoch, balance, next, begun, open, copy, log, heard, late, complete, faults>>
snapshots == <<next, begun, open, heard, late, complete>>

State(p) == [cursor |-> IF p = "s" THEN cursor ELSE 0, have |-> have[p], balance |-> balance[p]]
Nobody == [p \in {} |-> 0]
Start == [cursor |-> 0, have |-> {}, balance |-> 0]

Init ==
  /\ chan = {} /\ cursor = 0 /\ have = [p \in Proc |-> {}]
  /\ epoch = [p \in Proc |-> 0] /\ balance = [p \in Proc |-> 0]
  /\ next = 0 /\ begun = {} /\ open = {}
  /\ copy = Nobody /\ log = Nobody /\ heard = Nobody /\ late = Nobody
  /\ complete = [id |-> 0, copy |-> [p \in Proc |-> Start], log |-> {}]
  /\ faults = 0

Message(from, to, number, stamp) == [from |-> from, to |-> to, number |-> number, stamp |-> stamp]
With(f, key, value) == [each \in DOMAIN f \cup {key} |-> IF each = key THEN value ELSE f[each]]
Between(low, high) == {x \in open : low < x /\ x <= high}

----------------------------------------------------------------------------
(* Processes. *)

\* One state serves every epoch that is passed at once.
Copied(p, state, to) ==
  [x \in open |-> IF x \in Between(epoch[p], to) THEN With(copy[x], p, state) ELSE copy[x]]

Read ==
  /\ cursor < MaxRows
  /\ cursor' = cursor + 1
  /\ chan' = chan \cup {Message("s", "a", cursor + 1, epoch["s"])}
  /\ balance' = [balance EXCEPT !["s"] = @ + 1]
  /\ UNCHANGED <<have, epoch, snapshots, copy, log, faults>>

\* Erratum E1: who receives nothing learns of an epoch by a request only.
Request(p, x) ==
  /\ x \in begun /\ epoch[p] < x
  /\ Mutant = "NoRequest" => p # "s"
  /\ epoch' = [epoch EXCEPT ![p] = x]
  /\ copy' = Copied(p, State(p), x)
  /\ UNCHANGED <<chan, cursor, have, balance, snapshots, log, faults>>

\* What a row makes its receiver send.
Sent(m, stamp) ==
  CASE m.to = "b" -> {Message("b", "a", m.number, stamp)}
    [] m.from = "s" -> {Message("a", "b", m.number, stamp)}
    [] OTHER -> {}

\* For which epochs a message was in flight.
Across(m) ==
  LET found == Between(m.stamp, epoch[m.to]) IN
  IF Mutant = "OldestOnly" THEN {x \in found : \A y \in found : x <= y} ELSE found

Take(m) ==
  LET p == m.to
      now == IF m.stamp > epoch[p] THEN m.stamp ELSE epoch[p]
      sent == Sent(m, now)
      row == have[p] \cup {<<m.from, m.number>>}
      count == balance[p] - 1 + Cardinality(sent)
      after == [State(p) EXCEPT !.have = row, !.balance = count] IN
  /\ chan' = (chan \ {m}) \cup sent
  /\ have' = [have EXCEPT ![p] = row]
  /\ balance' = [balance EXCEPT ![p] = count]
  /\ epoch' = [epoch EXCEPT ![p] = now]
  /\ copy' = Copied(p, IF Mutant = "DeliverFirst" THEN after ELSE State(p), now)
  /\ log' = [x \in open |-> IF x \in Across(m) THEN log[x] \cup {m} ELSE log[x]]
  /\ UNCHANGED <<cursor, snapshots, faults>>

----------------------------------------------------------------------------
(* The coordinator. *)

Begin ==
  /\ next < MaxEpoch /\ Cardinality(open) < MaxOpen
  /\ next' = next + 1
  /\ begun' = begun \cup {next + 1} /\ open' = open \cup {next + 1}
  /\ copy' = With(copy, next + 1, Nobody) /\ log' = With(log, next + 1, {})
  /\ heard' = With(heard, next + 1, {}) /\ late' = With(late, next + 1, {})
  /\ UNCHANGED <<chan, cursor, have, epoch, balance, complete, faults>>

HearReport(x, p) ==
  /\ p \in DOMAIN copy[x] \ heard[x]
  /\ heard' = [heard EXCEPT ![x] = @ \cup {p}]
  /\ UNCHANGED <<chan, cursor, have, epoch, balance, next, begun, open, copy, log, late, complete, faults>>

HearLate(x, m) ==
  /\ m \in log[x] \ late[x]
  /\ late' = [late EXCEPT ![x] = @ \cup {m}]
  /\ UNCHANGED <<chan, cursor, have, epoch, balance, next, begun, open, copy, log, heard, complete, faults>>

Reported(x, p) == IF p \in heard[x] THEN copy[x][p].balance ELSE 0
InFlight(x) == Reported(x, "s") + Reported(x, "a") + Reported(x, "b") - Cardinality(late[x])

\* Erratum E1: a sum over some of the reports means nothing.
Counted(x) ==
  /\ heard[x] = Proc \/ (Mutant = "PartialSum" /\ heard[x] # {})
  /\ InFlight(x) = 0 \/ Mutant = "ReportsOnly"

Only(x) == {y \in open : y > x}
Kept(f, some) == [x \in some |-> f[x]]
Remain(some) ==
  /\ open' = some
  /\ copy' = Kept(copy, some) /\ log' = Kept(log, some) /\ heard' = Kept(heard, some) /\ late' = Kept(late, some)

\* Everything older is over with it.
Decide(x) ==
  /\ Counted(x)
  /\ complete' = [id |-> x, copy |-> Kept(copy[x], heard[x]), log |-> IF Mutant = "NotLogged" THEN {} ELSE late[x]]
  /\ Remain(Only(x))
  /\ UNCHANGED <<chan, cursor, have, epoch, balance, next, begun, faults>>

----------------------------------------------------------------------------
(* Surroundings. *)

Fault == faults < MaxFault /\ faults' = faults + 1
Renewed == Remain({}) /\ begun' = {} /\ next' = IF Mutant = "IdsAgain" THEN complete.id ELSE next

\* Everybody goes back.  What was in flight then is in flight again, with its stamps; nothing else is on the way.
Restore ==
  LET back(p) == IF p \in DOMAIN complete.copy THEN complete.copy[p] ELSE Start IN
  /\ Fault /\ Renewed
  /\ cursor' = back("s").cursor
  /\ have' = [p \in Proc |-> back(p).have]
  /\ balance' = [p \in Proc |-> IF Mutant = "CountsLost" THEN 0 ELSE back(p).balance]
  /\ epoch' = [p \in Proc |-> complete.id]
  /\ chan' = complete.log
  /\ UNCHANGED complete

\* Only the coordinator failed: everybody goes on, and what is open ends with it.
Succeed ==
  /\ Fault /\ Renewed
  /\ UNCHANGED <<chan, cursor, have, epoch, balance, complete>>

\* No answer in time, or a write that failed.
GiveUp(x) ==
  /\ Fault /\ Remain(open \ {x})
  /\ UNCHANGED <<chan, cursor, have, epoch, balance, next, begun, complete>>

Work ==
  \/ Read \/ Begin
  \/ \E m \in chan : Take(m)
  \/ \E p \in Proc : \E x \in begun : Request(p, x)
  \/ \E x \in open : Decide(x) \/ (\E p \in Proc : HearReport(x, p)) \/ (\E m \in log[x] : HearLate(x, m))

Next == Work \/ Restore \/ Succeed \/ \E x \in open : GiveUp(x)

\* Work is done in the end; nobody needs to give up.
Spec == Init /\ [][Next]_vars /\ WF_vars(Work)

----------------------------------------------------------------------------
From(state, q) == {r[2] : r \in {x \in state.have : x[1] = q}}

\* Of states of s, a and b: what was sent, and what was taken of it, from whom and by whom.
Out(states) ==
  [s |-> 1 .. states["s"].cursor, a |-> From(states["a"], "s"), b |-> From(states["b"], "a")]
In(states) ==
  [s |-> From(states["a"], "s"), a |-> From(states["b"], "a"), b |-> From(states["a"], "b")]

\* Per sender (each has one receiver): the rows among messages.
Rows(messages) == [p \in Proc |-> {m.number : m \in {n \in messages : n.from = p}}]

Fit(states, messages) ==
  \A p \in Proc :
    /\ In(states)[p] \subseteq Out(states)[p]
    /\ Rows(messages)[p] = Out(states)[p] \ In(states)[p]
    /\ \A m \in messages : m.from = p => \A n \in messages : n.from = p /\ n.number = m.number => n = m

\* At every moment, also after going back: what was sent is taken or on the way, and never both.
Conserved == Fit([p \in Proc |-> State(p)], chan)

\* A decided epoch has everybody's state ...
Complete == DOMAIN complete.copy = Proc

\* ... nobody has taken what was not sent ...
NoOrphan == Complete => \A p \in Proc : In(complete.copy)[p] \subseteq Out(complete.copy)[p]

\* ... and its log is what was in flight: sent before the cut, taken after it, each once.
ExactLog == Complete /\ NoOrphan => Fit(complete.copy, complete.log)

\* No more is logged than was in flight.
NotNegative == \A x \in open : heard[x] = Proc => InFlight(x) >= 0

\* Of each epoch, since there are finitely many.
EveryEpochEnds == (open # {}) ~> (open = {})
=============================================================================

---------------------------- MODULE BarrierCommit ----------------------------
(***************************************************************************)
(* Aligned barriers with a two-phase-commit sink (seeds 001 and 003), as   *)
(* spark_ckpt/protocol/barrier/ has them:   two sources, one task that    *)
(* merges them and is the sink.  Snapshots become durable late, one by     *)
(* one; the decision is one durable record; a crash takes everybody back   *)
(* to the last decision.  The sink prepares with its snapshot and shows    *)
(* rows only under a decided epoch.                                        *)
(*                                                                         *)
(* An epoch that is given up is one that a crash ends: rows of aborted     *)
(* transactions that a living sink carries over are not modelled.          *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS MaxRows, MaxEpoch, MaxCrash, Mutant

Src == {"s", "t"}
Sink == "k"
Zero == [p \in Src |-> 0]

VARIABLES
  inc, next, open, decided, settled,   \* coordinator: life, newest id, open id, last decision; sink: published
  asked, cursor, chan,                 \* sources that owe a barrier, rows read, channels
  blocked, seen, got, done,            \* sink: inputs held, newest epoch captured, rows taken, rows prepared
  writing, durable,                    \* snapshots under way, snapshots that are there
  visible                              \* rows that the world sees, per source, in order

vars == <<inc, next, open, decided, settled, asked, cursor, chan, blocked, seen, got, done, writing,
          durable, visible>>

Init ==
  /\ inc = 1 /\ next = 0 /\ open = 0 /\ decided = 0 /\ settled = 0
  /\ asked = {} /\ cursor = Zero /\ chan = [p \in Src |-> <<>>]
  /\ blocked = {} /\ seen = 0 /\ got = Zero /\ done = Zero
  /\ writing = {} /\ durable = {}
  /\ visible = [p \in Src |-> <<>>]

\* The snapshot that `who` goes back to for epoch e: the newest life's.
Of(who, e) == {w \in durable : w.who = who /\ w.epoch = e}
Newest(who, e) == CHOOSE w \in Of(who, e) : \A x \in Of(who, e) : x.inc <= w.inc
CursorOf(p, e) == IF e = 0 \/ Of(p, e) = {} THEN 0 ELSE Newest(p, e).at[p]
TakenOf(e) == IF e = 0 \/ Of(Sink, e) = {} THEN Zero ELSE Newest(Sink, e).at
BegunOf(e) == IF e = 0 \/ Of(Sink, e) = {} THEN Zero ELSE Newest(Sink, e).from

----------------------------------------------------------------------------
Read(p) ==
  /\ cursor[p] < MaxRows
  /\ cursor' = [cursor EXCEPT ![p] = @ + 1]
  /\ chan' = [chan EXCEPT ![p] = Append(@, [kind |-> "row", number |-> cursor[p] + 1])]
  /\ UNCHANGED <<inc, next, open, decided, settled, asked, blocked, seen, got, done, writing, durable,
                 visible>>

Begin ==
  /\ open = 0 /\ settled = decided /\ next < MaxEpoch
  /\ next' = next + 1 /\ open' = next + 1 /\ asked' = Src
  /\ UNCHANGED <<inc, decided, settled, cursor, chan, blocked, seen, got, done, writing, durable,
                 visible>>

Snapshot(who, at, from) == [who |-> who, epoch |-> open, inc |-> inc, at |-> at, from |-> from]

Barrier(p) ==
  /\ p \in asked
  /\ asked' = asked \ {p}
  /\ chan' = [chan EXCEPT ![p] = Append(@, [kind |-> "barrier", number |-> open])]
  /\ writing' = writing \cup {Snapshot(p, cursor, Zero)}
  /\ UNCHANGED <<inc, next, open, decided, settled, cursor, blocked, seen, got, done, durable, visible>>

TakeRow(p) ==
  /\ chan[p] # <<>> /\ p \notin blocked /\ Head(chan[p]).kind = "row"
  /\ got' = [got EXCEPT ![p] = Head(chan[p]).number]
  /\ chan' = [chan EXCEPT ![p] = Tail(@)]
  /\ UNCHANGED <<inc, next, open, decided, settled, asked, cursor, blocked, seen, done, writing, durable,
                 visible>>

Capture ==
  /\ writing' = writing \cup {Snapshot(Sink, got, done)}
  /\ done' = got /\ blocked' = {} /\ seen' = open

TakeBarrier(p) ==
  /\ chan[p] # <<>> /\ p \notin blocked /\ Head(chan[p]).kind = "barrier"
  /\ chan' = [chan EXCEPT ![p] = Tail(@)]
  /\ IF Head(chan[p]).number = seen THEN UNCHANGED <<writing, done, blocked, seen>>
     ELSE IF blocked \cup {p} = Src \/ Mutant = "FirstBarrier" THEN Capture
     ELSE blocked' = blocked \cup {p} /\ UNCHANGED <<writing, done, seen>>
  /\ UNCHANGED <<inc, next, open, decided, settled, asked, cursor, got, durable, visible>>

Rows(from, to) == [p \in Src |-> visible[p] \o [i \in 1 .. (to[p] - from[p]) |-> from[p] + i]]

Store(w) ==
  /\ writing' = writing \ {w}
  /\ durable' = durable \cup {w}
  /\ visible' = IF Mutant = "ShowPrepared" /\ w.who = Sink THEN Rows(w.from, w.at) ELSE visible
  /\ UNCHANGED <<inc, next, open, decided, settled, asked, cursor, chan, blocked, seen, got, done>>

Acked(who) == \E w \in Of(who, open) : w.inc = inc \/ Mutant = "StaleAcks"

Decide ==
  /\ open # 0 /\ Acked(Sink)
  /\ Mutant # "SinkIsEnough" => \A p \in Src : Acked(p)
  /\ decided' = open /\ open' = 0 /\ asked' = {}
  /\ UNCHANGED <<inc, next, settled, cursor, chan, blocked, seen, got, done, writing, durable, visible>>

Publish ==
  /\ settled < decided
  /\ settled' = decided
  /\ visible' = IF Mutant = "ShowPrepared" THEN visible ELSE Rows(BegunOf(decided), TakenOf(decided))
  /\ UNCHANGED <<inc, next, open, decided, asked, cursor, chan, blocked, seen, got, done, writing,
                 durable>>

\* Transactions in doubt: committed iff their epoch is decided. What was prepared after the last decision.
InDoubt == {e \in 1 .. next : e > decided /\ Of(Sink, e) # {}}

Crash ==
  /\ inc <= MaxCrash
  /\ inc' = inc + 1
  /\ next' = decided  \* ids are used again: what they belong to is told apart by the life
  /\ open' = 0 /\ asked' = {} /\ blocked' = {} /\ seen' = 0 /\ writing' = {}
  /\ chan' = [p \in Src |-> <<>>]
  /\ cursor' = [p \in Src |-> CursorOf(p, decided)]
  /\ got' = TakenOf(decided) /\ done' = TakenOf(decided)
  /\ settled' = IF Mutant = "PresumeAbort" THEN decided ELSE settled
  /\ visible' = IF Mutant = "CommitInDoubt" /\ InDoubt # {}
                THEN LET e == CHOOSE e \in InDoubt : TRUE IN Rows(BegunOf(e), TakenOf(e)) ELSE visible
  /\ UNCHANGED <<decided, durable>>

Next ==
  \/ \E p \in Src : Read(p) \/ Barrier(p) \/ TakeRow(p) \/ TakeBarrier(p)
  \/ \E w \in writing : Store(w)
  \/ Begin \/ Decide \/ Publish \/ Crash

Spec == Init /\ [][Next]_vars

----------------------------------------------------------------------------
\* Every row once and in order: what is seen is a prefix.
ExactlyOnce == \A p \in Src : visible[p] = [i \in 1 .. Len(visible[p]) |-> i]

\* A decided epoch can be recovered: everybody's snapshot is there ...
Complete == decided # 0 => \A who \in Src \cup {Sink} : Of(who, decided) # {}

\* ... and they fit: the sink has taken what the sources had read, no more (orphans) and no less (lost rows).
Consistent == decided # 0 => \A p \in Src : TakenOf(decided)[p] = CursorOf(p, decided)

\* Nothing is seen that the next crash takes back, and nothing decided and published is missing.
NotTooEarly == \A p \in Src : Len(visible[p]) <= TakenOf(decided)[p]
NotLost == settled = decided => \A p \in Src : Len(visible[p]) >= TakenOf(decided)[p]
=============================================================================

---------------------------- MODULE BarrierCommit ----------------------------
(***************************************************************************)
(* Aligned barriers with a two-phase-commit sink (seeds 001 and 003), as   *)
(* spark_ckpt/coordination/ has them:        two sources, one task that    *)
(* merges them and is the sink.  Snapshots become durable late, one by     *)
(* one; the decision is one durable record; a crash takes everybody back   *)
(* to the last decision.  The sink prepares with its snapshot and shows    *)
(* rows only under a decided epoch.                                        *)
(*                                                                         *)
(* An epoch may be given up: nobody goes back, and the sink carries the    *)
(* rows that it had prepared over to the next epoch, once it hears of it.  *)
(* If Takeover, a crash may be one: what the old life had under way, its   *)
(* snapshots, its decision, its publication, arrives later or never.       *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS MaxRows, MaxEpoch, MaxCrash, MaxAbort, Takeover, Mutant

Src == {"s", "t"}
Sink == "k"
Zero == [p \in Src |-> 0]
Nobody == [inc |-> 0, open |-> 0, owed |-> 0]

VARIABLES
  inc, next, open, decided, settled,   \* coordinator: life, newest id, open id, last decision; sink: published
  asked, cursor, chan,                 \* sources that owe a barrier, rows read, channels
  blocked, aligning, seen, got, done,  \* sink: inputs held, for which epoch, newest that is over here, rows taken, rows prepared
  voted, dead,                         \* sink: epoch prepared whose fate it does not know, or 0; given up, and not heard of
  zombie,                              \* the life before: its number, its open epoch, the decided one that it was publishing
  writing, durable,                    \* snapshots under way, snapshots that are there
  visible                              \* rows that the world sees, per source, in order

vars == <<inc, next, open, decided, settled, asked, cursor, chan, blocked, aligning, seen, got, done, voted, dead,
          zombie, writing, durable, visible>>
aborts == <<aligning, voted, dead, zombie>>

Init ==
  /\ inc = 1 /\ next = 0 /\ open = 0 /\ decided = 0 /\ settled = 0
  /\ asked = {} /\ cursor = Zero /\ chan = [p \in Src |-> <<>>]
  /\ blocked = {} /\ seen = 0 /\ got = Zero /\ done = Zero
  /\ aligning = 0 /\ voted = 0 /\ dead = {} /\ zombie = Nobody
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
                 visible, aborts>>

Begin ==
  /\ open = 0 /\ settled = decided /\ next < MaxEpoch
  /\ next' = next + 1 /\ open' = next + 1 /\ asked' = Src
  /\ UNCHANGED <<inc, decided, settled, cursor, chan, blocked, seen, got, done, writing, durable,
                 visible, aborts>>

Snapshot(who, epoch, at, from) == [who |-> who, epoch |-> epoch, inc |-> inc, at |-> at, from |-> from]

Barrier(p) ==
  /\ p \in asked
  /\ asked' = asked \ {p}
  /\ chan' = [chan EXCEPT ![p] = Append(@, [kind |-> "barrier", number |-> open])]
  /\ writing' = writing \cup {Snapshot(p, open, cursor, Zero)}
  /\ UNCHANGED <<inc, next, open, decided, settled, cursor, blocked, seen, got, done, durable, visible,
                 aborts>>

TakeRow(p) ==
  /\ chan[p] # <<>> /\ p \notin blocked /\ Head(chan[p]).kind = "row"
  /\ got' = [got EXCEPT ![p] = Head(chan[p]).number]
  /\ chan' = [chan EXCEPT ![p] = Tail(@)]
  /\ UNCHANGED <<inc, next, open, decided, settled, asked, cursor, blocked, seen, done, writing, durable,
                 visible, aborts>>

\* The sink prepares nothing before it knows the fate of what it has prepared.
Capture(epoch) ==
  /\ voted = 0
  /\ writing' = writing \cup {Snapshot(Sink, epoch, got, done)}
  /\ done' = got /\ blocked' = {} /\ aligning' = 0 /\ seen' = epoch /\ voted' = epoch

\* A barrier of a newer epoch ends the alignment under way; one of an older epoch is over.
Held(epoch) == IF aligning = epoch THEN blocked ELSE {}
Over(epoch) == epoch <= seen \/ (epoch < aligning /\ Mutant # "OlderAgain")

TakeBarrier(p) ==
  LET epoch == Head(chan[p]).number IN
  /\ chan[p] # <<>> /\ p \notin blocked /\ Head(chan[p]).kind = "barrier"
  /\ chan' = [chan EXCEPT ![p] = Tail(@)]
  /\ IF Over(epoch) THEN UNCHANGED <<writing, done, blocked, aligning, seen, voted>>
     ELSE IF Held(epoch) \cup {p} = Src \/ Mutant = "FirstBarrier" THEN Capture(epoch)
     ELSE blocked' = Held(epoch) \cup {p} /\ aligning' = epoch /\ UNCHANGED <<writing, done, seen, voted>>
  /\ UNCHANGED <<inc, next, open, decided, settled, asked, cursor, got, durable, visible, dead, zombie>>

Rows(from, to) == [p \in Src |-> visible[p] \o [i \in 1 .. (to[p] - from[p]) |-> from[p] + i]]

Store(w) ==
  /\ writing' = writing \ {w}
  /\ durable' = durable \cup {w}
  /\ visible' = IF Mutant = "ShowPrepared" /\ w.who = Sink THEN Rows(w.from, w.at) ELSE visible
  /\ UNCHANGED <<inc, next, open, decided, settled, asked, cursor, chan, blocked, seen, got, done, aborts>>

Acked(who) == \E w \in Of(who, open) : w.inc = inc \/ Mutant = "StaleAcks"

Decide ==
  /\ open # 0 /\ Acked(Sink)
  /\ Mutant # "SinkIsEnough" => \A p \in Src : Acked(p)
  /\ decided' = open /\ open' = 0 /\ asked' = {}
  /\ dead' = IF Mutant = "GivesUpLate" THEN dead \cup {open} ELSE dead
  /\ UNCHANGED <<inc, next, settled, cursor, chan, blocked, seen, got, done, writing, durable, visible, aligning, voted,
                 zombie>>

\* The sink has heard of the decision.
Publish ==
  /\ settled < decided
  /\ Mutant = "OwnOnly" => \E w \in Of(Sink, decided) : w.inc = inc
  /\ settled' = decided
  /\ voted' = 0
  /\ visible' = IF Mutant = "ShowPrepared" THEN visible ELSE Rows(BegunOf(decided), TakenOf(decided))
  /\ UNCHANGED <<inc, next, open, decided, asked, cursor, chan, blocked, seen, got, done, writing,
                 durable, aligning, dead, zombie>>

----------------------------------------------------------------------------
(* Epochs that are given up. *)

\* What was written for an epoch that is given up is never read: it is left out, the sink's once it has heard.
Without(some, e, whose) == {w \in some : ~(w.inc = inc /\ w.epoch = e /\ w.who \in whose)}

\* No answer in time.  A source that has not sent its barrier sends none.
GiveUp ==
  /\ open # 0 /\ next - decided <= MaxAbort
  /\ dead' = dead \cup {open} /\ open' = 0 /\ asked' = {}
  /\ writing' = Without(writing, open, Src) /\ durable' = Without(durable, open, Src)
  /\ UNCHANGED <<inc, next, decided, settled, cursor, chan, blocked, seen, got, done, visible, aligning, voted, zombie>>

\* What this life prepared for an epoch, on the way or there.
Prepared(e) == {w \in writing \cup durable : w.who = Sink /\ w.epoch = e /\ w.inc = inc}
Carries(e) == IF Mutant = "CarriesAgain" THEN Prepared(e) # {} ELSE voted = e

HearGivenUp(e) ==
  /\ e \in dead
  /\ dead' = IF Mutant = "CarriesAgain" THEN dead ELSE dead \ {e}
  /\ done' = IF Carries(e) /\ Mutant # "ForgetsRows" THEN (CHOOSE w \in Prepared(e) : TRUE).from ELSE done
  /\ voted' = IF voted = e /\ Mutant # "WaitsForEver" THEN 0 ELSE voted
  /\ IF aligning = e THEN blocked' = {} /\ aligning' = 0 ELSE UNCHANGED <<blocked, aligning>>
  /\ seen' = IF e > seen THEN e ELSE seen
  /\ IF e = decided \/ Mutant = "CarriesAgain" THEN UNCHANGED <<writing, durable>>
     ELSE writing' = Without(writing, e, {Sink}) /\ durable' = Without(durable, e, {Sink})
  /\ UNCHANGED <<inc, next, open, decided, settled, asked, cursor, chan, got, visible, zombie>>

----------------------------------------------------------------------------
(* Crashes and takeovers. *)

\* Transactions in doubt: committed iff their epoch is decided. What was prepared after the last decision.
InDoubt == {e \in 1 .. next : e > decided /\ Of(Sink, e) # {}}

Crash ==
  /\ inc <= MaxCrash
  /\ inc' = inc + 1
  /\ next' = decided  \* ids are used again: what they belong to is told apart by the life
  /\ open' = 0 /\ asked' = {} /\ blocked' = {} /\ aligning' = 0 /\ seen' = decided /\ voted' = 0 /\ dead' = {}
  /\ zombie' = IF ~Takeover THEN Nobody
               ELSE [inc |-> inc, open |-> open, owed |-> IF settled < decided THEN decided ELSE 0]
  /\ writing' = IF Takeover THEN writing ELSE {}
  /\ chan' = [p \in Src |-> <<>>]
  /\ cursor' = [p \in Src |-> CursorOf(p, decided)]
  /\ got' = TakenOf(decided) /\ done' = TakenOf(decided)
  /\ settled' = IF Mutant = "PresumeAbort" THEN decided ELSE settled
  /\ visible' = IF Mutant = "CommitInDoubt" /\ InDoubt # {}
                THEN LET e == CHOOSE e \in InDoubt : TRUE IN Rows(BegunOf(e), TakenOf(e)) ELSE visible
  /\ UNCHANGED <<decided, durable>>

\* The old life has all its answers and decides: the log turns it away, it has another owner.
ZombieDecides ==
  /\ Mutant = "NoFence" /\ zombie.open > decided
  /\ \A who \in Src \cup {Sink} : \E w \in Of(who, zombie.open) : w.inc = zombie.inc
  /\ decided' = zombie.open /\ zombie' = [zombie EXCEPT !.open = 0]
  /\ UNCHANGED <<inc, next, open, settled, asked, cursor, chan, blocked, seen, got, done, writing, durable, visible,
                 aligning, voted, dead>>

\* The old life's publication arrives: it is the new one's, or that was first, and then it changes nothing.
ZombiePublishes ==
  /\ zombie.owed # 0
  /\ zombie' = [zombie EXCEPT !.owed = 0]
  /\ settled' = IF settled < zombie.owed THEN zombie.owed ELSE settled
  /\ visible' = IF settled < zombie.owed \/ Mutant = "PublishesBlindly"
                THEN Rows(BegunOf(zombie.owed), TakenOf(zombie.owed)) ELSE visible
  /\ UNCHANGED <<inc, next, open, decided, asked, cursor, chan, blocked, seen, got, done, writing, durable, aligning,
                 voted, dead>>

Next ==
  \/ \E p \in Src : Read(p) \/ Barrier(p) \/ TakeRow(p) \/ TakeBarrier(p)
  \/ \E w \in writing : Store(w)
  \/ Begin \/ Decide \/ Publish \/ Crash
  \/ GiveUp \/ \E e \in dead : HearGivenUp(e)
  \/ ZombieDecides \/ ZombiePublishes

\* What happens by itself, sooner or later: not that rows come, an epoch begins, is given up, or somebody crashes.
Work ==
  \/ \E p \in Src : Barrier(p) \/ TakeRow(p) \/ TakeBarrier(p)
  \/ \E w \in writing : Store(w)
  \/ Decide \/ Publish
  \/ \E e \in dead : HearGivenUp(e)

Spec == Init /\ [][Next]_vars /\ WF_vars(Work)

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

\* An epoch that has begun is decided, or given up; what is decided is shown.
EveryEpochEnds == (open # 0) ~> (open = 0)
EveryDecisionIsShown == (settled < decided) ~> (settled = decided)
=============================================================================

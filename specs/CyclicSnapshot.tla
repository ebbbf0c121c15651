--------------------------- MODULE CyclicSnapshot ---------------------------
(***************************************************************************)
(* Barrier snapshots on a graph with loops (seed 003, algorithm 2), as     *)
(* checkpoint_protocols/snapshots/cyclic.py has them, for                   *)
(*                                                                         *)
(*     s -> a,  a -> b -> a,  a -> c -> a                                  *)
(*                                                                         *)
(* a is the head of two loops: it aligns on its regular input s, copies    *)
(* its state, and logs what comes on a back edge until that edge's barrier *)
(* has come around.  After the last snapshot everybody goes back: loads    *)
(* the copy, and a takes what is in the logs first.                        *)
(*                                                                         *)
(* Rows: s reads 1 .. MaxRows; a sends each row of s around both loops;    *)
(* b and c send it back, and a keeps it.                                   *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS MaxRows, MaxId, MaxRestore, Mutant

Loop == {"b", "c"}
Task == {"s", "a"} \cup Loop
Ends == {<<"s", "a">>, <<"a", "b">>, <<"b", "a">>, <<"a", "c">>, <<"c", "a">>}

VARIABLES
  chan,      \* per edge: rows (numbers) and barriers
  cursor,    \* rows that s has read
  have,      \* per task: the rows it has taken, from whom
  open,      \* the snapshot under way, 0 for none; ids are never used again
  next,
  asked,     \* s owes a barrier
  copy,      \* per task: the state at the barrier of the open snapshot, or nothing
  log,       \* per back edge: what a logged
  marked,    \* back edges on which the barrier has come around
  complete,  \* the newest complete snapshot: [copy, log]
  restores   \* returns, and new coordinators

vars == <<chan, cursor, have, open, next, asked, copy, log, marked, complete, restores>>

Barrier(id) == [kind |-> "barrier", number |-> id]
Row(number) == [kind |-> "row", number |-> number]
Nothing == [cursor |-> 0, have |-> {}]
State(p) == [cursor |-> cursor, have |-> have[p]]
NoLogs == [l \in Loop |-> <<>>]

Init ==
  /\ chan = [e \in Ends |-> <<>>] /\ cursor = 0 /\ have = [p \in Task |-> {}]
  /\ open = 0 /\ next = 0 /\ asked = FALSE
  /\ copy = [p \in {} |-> Nothing] /\ log = NoLogs /\ marked = {}
  /\ complete = [copy |-> [p \in Task |-> Nothing], log |-> NoLogs]
  /\ restores = 0

Put(c, target, item) == [c EXCEPT ![target] = Append(@, item)]
Without(e) == [chan EXCEPT ![e] = Tail(@)]
Next1(e, kind) == chan[e] # <<>> /\ Head(chan[e]).kind = kind
With(p) == [q \in DOMAIN copy \cup {p} |-> IF q = p THEN State(p) ELSE copy[q]]

----------------------------------------------------------------------------
(* Rows. *)

Read ==
  /\ cursor < MaxRows
  /\ cursor' = cursor + 1
  /\ chan' = Put(chan, <<"s", "a">>, Row(cursor + 1))
  /\ UNCHANGED <<have, open, next, asked, copy, log, marked, complete, restores>>

Both(c, item) == Put(Put(c, <<"a", "b">>, item), <<"a", "c">>, item)

TakeNew ==
  LET e == <<"s", "a">> IN
  /\ Next1(e, "row")
  /\ have' = [have EXCEPT !["a"] = @ \cup {<<"s", Head(chan[e]).number>>}]
  /\ chan' = Both(Without(e), Head(chan[e]))
  /\ UNCHANGED <<cursor, open, next, asked, copy, log, marked, complete, restores>>

PassOn(l) ==
  LET e == <<"a", l>> IN
  /\ Next1(e, "row")
  /\ have' = [have EXCEPT ![l] = @ \cup {<<"a", Head(chan[e]).number>>}]
  /\ chan' = Put(Without(e), <<l, "a">>, Head(chan[e]))
  /\ UNCHANGED <<cursor, open, next, asked, copy, log, marked, complete, restores>>

\* a logs what comes between its copy and the barrier of that edge; erratum E6 also what comes after.
Logs(l) ==
  /\ open # 0 /\ "a" \in DOMAIN copy
  /\ Mutant # "NoLog"
  /\ l \notin marked \/ Mutant = "LogsMarked"

TakeBack(l) ==
  LET e == <<l, "a">> IN
  /\ Next1(e, "row")
  /\ have' = [have EXCEPT !["a"] = @ \cup {<<l, Head(chan[e]).number>>}]
  /\ log' = IF Logs(l) THEN [log EXCEPT ![l] = Append(@, Head(chan[e]).number)] ELSE log
  /\ chan' = Without(e)
  /\ UNCHANGED <<cursor, open, next, asked, copy, marked, complete, restores>>

----------------------------------------------------------------------------
(* Barriers. *)

Begin ==
  /\ open = 0 /\ next < MaxId
  /\ open' = next + 1 /\ next' = next + 1 /\ asked' = TRUE
  /\ copy' = [p \in {} |-> Nothing] /\ log' = NoLogs /\ marked' = {}
  /\ UNCHANGED <<chan, cursor, have, complete, restores>>

\* Erratum E4: a source has no input but Nil, and takes its copy on it. The mutant waits for ever.
BarrierAtSource ==
  /\ asked /\ Mutant # "LiteralNil"
  /\ asked' = FALSE
  /\ copy' = With("s")
  /\ chan' = Put(chan, <<"s", "a">>, Barrier(open))
  /\ UNCHANGED <<cursor, have, open, next, log, marked, complete, restores>>

BarrierAtHead ==
  LET e == <<"s", "a">> IN
  /\ Next1(e, "barrier") /\ Mutant # "AlignsOnLoops"
  /\ copy' = With("a")
  /\ chan' = Both(Without(e), Head(chan[e]))
  /\ UNCHANGED <<cursor, have, open, next, asked, log, marked, complete, restores>>

BarrierInLoop(l) ==
  LET e == <<"a", l>> IN
  /\ Next1(e, "barrier")
  /\ copy' = With(l)
  /\ chan' = Put(Without(e), <<l, "a">>, Head(chan[e]))
  /\ UNCHANGED <<cursor, have, open, next, asked, log, marked, complete, restores>>

BarrierBack(l) ==
  LET e == <<l, "a">> IN
  /\ Next1(e, "barrier")
  /\ marked' = marked \cup {l}
  /\ chan' = Without(e)
  /\ UNCHANGED <<cursor, have, open, next, asked, copy, log, complete, restores>>

Done == open # 0 /\ DOMAIN copy = Task /\ (marked = Loop \/ (Mutant = "FirstReturn" /\ marked # {}))

Complete ==
  /\ Done
  /\ complete' = [copy |-> copy, log |-> log]
  /\ open' = 0
  /\ UNCHANGED <<chan, cursor, have, next, asked, copy, log, marked, restores>>

\* Everybody goes back; a takes the logged rows before anything else. Nothing else is on the way.
Logged(l) == {<<l, complete.log[l][i]>> : i \in DOMAIN complete.log[l]}

Restore ==
  /\ restores < MaxRestore
  /\ restores' = restores + 1
  /\ cursor' = complete.copy["s"].cursor
  /\ have' = [p \in Task |-> IF p = "a" THEN complete.copy[p].have \cup UNION {Logged(l) : l \in Loop}
                             ELSE complete.copy[p].have]
  /\ chan' = [e \in Ends |-> <<>>]
  /\ open' = 0 /\ asked' = FALSE
  /\ UNCHANGED <<next, copy, log, marked, complete>>

\* Only the coordinator failed: everybody goes on, and the open snapshot and its barriers end with it.
OfRows(items) == SelectSeq(items, LAMBDA item : item.kind = "row")

Succeed ==
  /\ restores < MaxRestore
  /\ restores' = restores + 1
  /\ chan' = [e \in Ends |-> OfRows(chan[e])]
  /\ open' = 0 /\ asked' = FALSE
  /\ UNCHANGED <<cursor, have, next, copy, log, marked, complete>>

Next ==
  \/ Read \/ TakeNew \/ Begin \/ BarrierAtSource \/ BarrierAtHead \/ Complete \/ Restore \/ Succeed
  \/ \E l \in Loop : PassOn(l) \/ TakeBack(l) \/ BarrierInLoop(l) \/ BarrierBack(l)

Spec == Init /\ [][Next]_vars /\ WF_vars(Next)

----------------------------------------------------------------------------
Rows(e) == {chan[e][i].number : i \in {j \in DOMAIN chan[e] : chan[e][j].kind = "row"}}
From(p, q) == {r[2] : r \in {x \in have[p] : x[1] = q}}

\* At every moment, also after going back: what was sent is taken or on the way, and never both.
Conserved ==
  /\ From("a", "s") \cup Rows(<<"s", "a">>) = 1 .. cursor
  /\ From("a", "s") \cap Rows(<<"s", "a">>) = {}
  /\ \A l \in Loop :
     /\ From(l, "a") \cup Rows(<<"a", l>>) = From("a", "s")
     /\ From(l, "a") \cap Rows(<<"a", l>>) = {}
     /\ From("a", l) \cup Rows(<<l, "a">>) = From(l, "a")
     /\ From("a", l) \cap Rows(<<l, "a">>) = {}

\* The logs hold what was sent before the cut and taken after it, each once: what is logged twice, or is in the
\* copy already, would be taken twice.
Copied(p, q) == {r[2] : r \in {x \in complete.copy[p].have : x[1] = q}}
InLog(l) == {complete.log[l][i] : i \in DOMAIN complete.log[l]}

ExactLogs ==
  \A l \in Loop :
    /\ InLog(l) = Copied(l, "a") \ Copied("a", l)
    /\ Len(complete.log[l]) = Cardinality(InLog(l))

EverySnapshotCompletes == (open # 0) ~> (open = 0)
=============================================================================

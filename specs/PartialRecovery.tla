-------------------------- MODULE PartialRecovery --------------------------
(***************************************************************************)
(* Partial recovery (seed 003, section 5; erratum E16), as                 *)
(* checkpoint_protocols/snapshots/partial_recovery.py has it, for           *)
(*                                                                         *)
(*     s -> m,  t -> m,  m -> x,  m -> y                                   *)
(*                                                                         *)
(* A task fails: it and everybody upstream of it go back to the last       *)
(* snapshot, everybody else goes on and drops what comes again.  m merges: *)
(* it writes down from which input a row comes before it delivers it, and  *)
(* after a recovery takes its rows in that order.                          *)
(*                                                                         *)
(* Rows: s reads MaxRows and t OtherRows; for each row m sends two         *)
(* siblings to x and one to y.  Every channel counts.                      *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS MaxRows, OtherRows, MaxId, MaxFail, Mutant

Source == {"s", "t"}
Sink == {"x", "y"}
Task == Source \cup Sink \cup {"m"}
Ends == {<<p, "m">> : p \in Source} \cup {<<"m", p>> : p \in Sink}

VARIABLES
  chan,      \* per edge: rows and barriers
  cursor,    \* per source: rows it has read
  got,       \* m: per source, rows it has delivered
  sent,      \* m: per sink, rows it has sent
  order,     \* durable: from which source m's rows came
  have,      \* per sink: what it has taken, in order
  open,      \* the snapshot under way, 0 for none; ids are never used again
  next,
  asked,     \* sources that owe a barrier
  marked,    \* inputs of m that are held at the barrier
  copy,      \* per task: its state at the barrier of the open snapshot, or nothing
  complete,  \* the newest complete snapshot
  failures

vars == <<chan, cursor, got, sent, order, have, open, next, asked, marked, copy, complete, failures>>

Row(seq, source, number, nth) ==
  [kind |-> "row", seq |-> seq, source |-> source, number |-> number, nth |-> nth]
Barrier(id, before) == [kind |-> "barrier", id |-> id, before |-> before]
State(p) == [cursor |-> cursor, got |-> got, sent |-> sent, have |-> have]
With(p) == [q \in DOMAIN copy \cup {p} |-> IF q = p THEN State(p) ELSE copy[q]]
None == [p \in {} |-> State("m")]

Init ==
  /\ chan = [e \in Ends |-> <<>>] /\ cursor = [p \in Source |-> 0]
  /\ got = [p \in Source |-> 0] /\ sent = [p \in Sink |-> 0]
  /\ order = <<>> /\ have = [p \in Sink |-> <<>>]
  /\ open = 0 /\ next = 0 /\ asked = {} /\ marked = {} /\ copy = None
  /\ complete = [p \in Task |-> State(p)]
  /\ failures = 0

Put(c, e, item) == [c EXCEPT ![e] = Append(@, item)]
Without(e) == [chan EXCEPT ![e] = Tail(@)]
Head1(e, kind) == chan[e] # <<>> /\ Head(chan[e]).kind = kind
Position == got["s"] + got["t"]
Repeats == Position < Len(order)

----------------------------------------------------------------------------
(* What is known already. The channel's own count names a row; "smaller" delivers the last one twice, and a source's number is
   the same for siblings. *)

Last(rows, source) ==
  LET of == {i \in DOMAIN rows : rows[i].source = source} IN
  IF of = {} THEN 0 ELSE LET i == CHOOSE i \in of : \A j \in of : j <= i IN rows[i].number

KnownAt(p, row) ==
  CASE Mutant = "Smaller" -> row.seq < Len(have[p])
    [] Mutant = "SourceNumber" -> row.number <= Last(have[p], row.source)
    [] OTHER -> row.seq <= Len(have[p])

----------------------------------------------------------------------------
(* Rows. *)

Read(p) ==
  /\ cursor[p] < (IF p = "s" THEN MaxRows ELSE OtherRows)
  /\ cursor' = [cursor EXCEPT ![p] = @ + 1]
  /\ chan' = Put(chan, <<p, "m">>, Row(cursor[p] + 1, p, cursor[p] + 1, 1))
  /\ UNCHANGED <<got, sent, order, have, open, next, asked, marked, copy, complete, failures>>

IsOpen(p) == p \notin marked /\ (Repeats => order[Position + 1] = p)

\* A mutant that replays takes nothing but what its order names.
DropAtMerge(p) ==
  LET e == <<p, "m">> IN
  /\ Mutant = "OrderOnly" => ~Repeats
  /\ IsOpen(p) /\ Head1(e, "row") /\ Head(chan[e]).seq <= got[p]
  /\ chan' = Without(e)
  /\ UNCHANGED <<cursor, got, sent, order, have, open, next, asked, marked, copy, complete, failures>>

Delivered(c, row) ==
  /\ got' = [got EXCEPT ![row.source] = @ + 1]
  /\ sent' = [sent EXCEPT !["x"] = @ + 2, !["y"] = @ + 1]
  /\ chan' = Put(Put(Put(c, <<"m", "x">>, Row(sent["x"] + 1, row.source, row.number, 1)),
                            <<"m", "x">>, Row(sent["x"] + 2, row.source, row.number, 2)),
                            <<"m", "y">>, Row(sent["y"] + 1, row.source, row.number, 1))

IsNew(p) == Head1(<<p, "m">>, "row") /\ Head(chan[<<p, "m">>]).seq > got[p]

\* The place in the order is durable before the row is delivered: a failure may come between (`Fail`). A mutant writes nothing down.
Deliver(p) ==
  /\ IsOpen(p) /\ IsNew(p)
  /\ order' = IF Repeats \/ Mutant = "NoOrder" THEN order ELSE Append(order, p)
  /\ Delivered(Without(<<p, "m">>), Head(chan[<<p, "m">>]))
  /\ UNCHANGED <<cursor, have, open, next, asked, marked, copy, complete, failures>>

Take(p) ==
  LET e == <<"m", p>> IN
  /\ Head1(e, "row")
  /\ have' = IF KnownAt(p, Head(chan[e])) THEN have ELSE [have EXCEPT ![p] = Append(@, Head(chan[e]))]
  /\ chan' = Without(e)
  /\ UNCHANGED <<cursor, got, sent, order, open, next, asked, marked, copy, complete, failures>>

----------------------------------------------------------------------------
(* Snapshots. A barrier says how much was sent before it: who is ahead of that, or still repeats, refuses. *)

Begin ==
  /\ open = 0 /\ next < MaxId
  /\ open' = next + 1 /\ next' = next + 1 /\ asked' = Source /\ marked' = {} /\ copy' = None
  /\ UNCHANGED <<chan, cursor, got, sent, order, have, complete, failures>>

BarrierAtSource(p) ==
  /\ p \in asked
  /\ asked' = asked \ {p}
  /\ copy' = With(p)
  /\ chan' = Put(chan, <<p, "m">>, Barrier(open, cursor[p]))
  /\ UNCHANGED <<cursor, got, sent, order, have, open, next, marked, complete, failures>>

IsOurs(e) == Head1(e, "barrier") /\ Head(chan[e]).id = open

BarrierAtMerge(p) ==
  LET e == <<p, "m">> IN
  /\ IsOpen(p) /\ IsOurs(e)
  /\ (~Repeats /\ got[p] <= Head(chan[e]).before) \/ Mutant = "NoRefusal"
  /\ IF marked \cup {p} = Source
     THEN /\ copy' = With("m") /\ marked' = {}
          /\ chan' = Put(Put(Without(e), <<"m", "x">>, Barrier(open, sent["x"])), <<"m", "y">>, Barrier(open, sent["y"]))
     ELSE /\ marked' = marked \cup {p} /\ chan' = Without(e) /\ copy' = copy
  /\ UNCHANGED <<cursor, got, sent, order, have, open, next, asked, complete, failures>>

BarrierAtSink(p) ==
  LET e == <<"m", p>> IN
  /\ IsOurs(e)
  /\ Len(have[p]) <= Head(chan[e]).before \/ Mutant = "NoRefusal"
  /\ copy' = With(p)
  /\ chan' = Without(e)
  /\ UNCHANGED <<cursor, got, sent, order, have, open, next, asked, marked, complete, failures>>

Closed == open' = 0 /\ asked' = {} /\ marked' = {} /\ copy' = None
OfRows(items) == SelectSeq(items, LAMBDA item : item.kind = "row")
Over == Closed /\ chan' = [e \in Ends |-> OfRows(chan[e])]

Refuse ==
  /\ Mutant \notin {"NoRefusal", "WaitsItOut"}
  /\ \/ \E p \in Source : LET e == <<p, "m">> IN
          IsOpen(p) /\ IsOurs(e) /\ (Repeats \/ got[p] > Head(chan[e]).before)
     \/ \E p \in Sink : LET e == <<"m", p>> IN IsOurs(e) /\ Len(have[p]) > Head(chan[e]).before
  /\ Over
  /\ UNCHANGED <<cursor, got, sent, order, have, next, complete, failures>>

Complete ==
  /\ open # 0 /\ DOMAIN copy = Task
  /\ complete' = copy
  /\ Closed
  /\ UNCHANGED <<chan, cursor, got, sent, order, have, next, failures>>

----------------------------------------------------------------------------
(* Failures. *)

\* The coordinator fails, or waits no longer, or somebody's state can't be written: nobody goes back.
GiveUp ==
  /\ open # 0 /\ failures < MaxFail
  /\ failures' = failures + 1
  /\ Over
  /\ UNCHANGED <<cursor, got, sent, order, have, next, complete>>

Behind(p) ==
  CASE Mutant = "Alone" -> {p}
    [] p \in Source -> {p}
    [] p = "m" -> Source \cup {"m"}
    [] OTHER -> Source \cup {"m", p}

Fail(gone) ==
  LET back == UNION {Behind(p) : p \in gone} IN
  /\ failures < MaxFail
  /\ failures' = failures + 1
  /\ cursor' = [q \in Source |-> IF q \in back THEN complete[q].cursor[q] ELSE cursor[q]]
  /\ got' = IF "m" \in back THEN complete["m"].got ELSE got
  /\ sent' = IF "m" \in back THEN complete["m"].sent ELSE sent
  /\ have' = [q \in Sink |-> IF q \in back THEN complete[q].have[q] ELSE have[q]]
  /\ chan' = [e \in Ends |-> IF e[1] \in back \/ e[2] \in back THEN <<>> ELSE OfRows(chan[e])]
  /\ order' \in (IF "m" \notin back THEN {order}
                 ELSE IF Mutant = "OrderInMemory" THEN {SubSeq(order, 1, got'["s"] + got'["t"])}
                 ELSE {order} \cup (IF Repeats \/ Mutant = "NoOrder" THEN {} ELSE {Append(order, q) : q \in {r \in Source : IsOpen(r) /\ IsNew(r)}}))
  /\ Closed
  /\ UNCHANGED <<next, complete>>

Next ==
  \/ Begin \/ Refuse \/ Complete \/ GiveUp
  \/ \E p \in Source : Read(p) \/ DropAtMerge(p) \/ Deliver(p) \/ BarrierAtSource(p) \/ BarrierAtMerge(p)
  \/ \E p \in Sink : Take(p) \/ BarrierAtSink(p)
  \/ \E p \in Task : Fail({p})

Spec == Init /\ [][Next]_vars /\ WF_vars(Next)

----------------------------------------------------------------------------
Merged(p) == LET firsts == SelectSeq(have[p], LAMBDA row : row.nth = 1) IN [i \in DOMAIN firsts |-> <<firsts[i].source, firsts[i].number>>]

\* No survivor has a hole, a repetition, or siblings apart; each source's rows are in order.
OnceInOrder ==
  /\ \A p \in Sink : \A i \in DOMAIN have[p] : have[p][i].seq = i
  /\ \A i \in DOMAIN have["x"] : have["x"][i].nth = IF i % 2 = 1 THEN 1 ELSE 2
  /\ \A p \in Sink : \A i \in DOMAIN Merged(p) :
       Merged(p)[i][2] = Cardinality({j \in 1 .. i : Merged(p)[j][1] = Merged(p)[i][1]})

\* Whoever survives and whoever goes back see one order.
OneOrder == \A i \in DOMAIN Merged("x") \cap DOMAIN Merged("y") : Merged("x")[i] = Merged("y")[i]

\* Nobody's copy has a row that its sender's copy has not sent.
NoOrphan ==
  /\ \A p \in Source : complete["m"].got[p] <= complete[p].cursor[p]
  /\ \A p \in Sink : Len(complete[p].have[p]) <= complete["m"].sent[p]

NoGap ==
  /\ \A p \in Source : IsNew(p) => Head(chan[<<p, "m">>]).seq = got[p] + 1
  /\ \A p \in Sink : Head1(<<"m", p>>, "row") => Head(chan[<<"m", p>>]).seq <= Len(have[p]) + 1

\* Somebody sends again what was taken before it went back, or the merge is not through with its old order.
Recovering ==
  \/ Repeats
  \/ \E p \in Source : cursor[p] < got[p]
  \/ \E p \in Sink : sent[p] < Len(have[p])

EveryRecoveryEnds == Recovering ~> ~Recovering
EveryRowArrives == <>(\A p \in Sink : Len(have[p]) = (IF p = "x" THEN 2 ELSE 1) * (MaxRows + OtherRows))
EverySnapshotEnds == (open # 0) ~> (open = 0)
=============================================================================

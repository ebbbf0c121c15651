----------------------------- MODULE StageLines -----------------------------
(***************************************************************************)
(* Lines of stages that edges join (Briatico, Ciuffoletti, Simoncini 1984; *)
(* Manivannan, Singhal 1996), as spark_ckpt/coordination/stage_process.py  *)
(* has them, with the protocols `index`, `unaligned` and `aligned`.        *)
(*                                                                         *)
(* A stage reads rows off its edges into its state.  Its epoch commits at  *)
(* once: positions on edges, state, and the rows that it sends.  An edge   *)
(* carries rows of committed epochs only, and keeps them.  Their stamp is  *)
(* the index that their sender served before.  A stage takes no row whose  *)
(* stamp is above its own index.  Line N is each stage's first epoch that  *)
(* serves N; it is decided once every stage serves N.                      *)
(*                                                                         *)
(* There is no coordinator, no count and no log of messages in flight: a   *)
(* stage that crashes restarts alone, and all others go on.                *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS Graphs, Protocols, MaxRows, MaxIndex, MaxCrash, Mutant

VARIABLES
  graph,      \* [stages, edges]; an edge has a sender `from` and a reader `to`
  protocol,
  log,        \* per stage: its committed epochs, oldest first
  read,       \* per edge: the position of its reader, in rows
  had,        \* per stage: rows in its state
  cut,        \* per stage: what its epoch under way will commit, or nothing
  published,  \* per stage: the newest epoch that its sinks may have
  crashes

vars == <<graph, protocol, log, read, had, cut, published, crashes>>
fixed == <<graph, protocol>>

Stage == graph.stages
Edge == DOMAIN graph.edges
In(p) == {g \in Edge : graph.edges[g].to = p}
Out(p) == {g \in Edge : graph.edges[g].from = p}
Last(p) == log[p][Len(log[p])]
Least(numbers) == CHOOSE x \in numbers : \A y \in numbers : x <= y
Most(numbers) == CHOOSE x \in numbers : \A y \in numbers : y <= x

Index(p) == IF log[p] = <<>> THEN 0 ELSE Last(p).index
Sent(g) == IF log[graph.edges[g].from] = <<>> THEN 0 ELSE Last(graph.edges[g].from).sent[g]

\* Per edge: the rows that the newest epoch has read.
Committed(p) == IF log[p] = <<>> THEN [g \in In(p) |-> 0] ELSE Last(p).read
Here(p) == [g \in In(p) |-> read[g]]

\* The first epoch with this index at least; 0 for none.  Indices and rows only grow along a log.
Serving(p, n) ==
  LET before == Cardinality({k \in 1 .. Len(log[p]) : log[p][k].index < n}) IN
  IF before = Len(log[p]) THEN 0 ELSE before + 1

\* The stamp of a row: the index that its sender served before its epoch.
Stamp(g, row) ==
  LET epochs == log[graph.edges[g].from] IN
  epochs[Cardinality({k \in 1 .. Len(epochs) : epochs[k].sent[g] < row}) + 1].stamp

\* A reader of an aligned program follows its inputs, every other stage its clock and its senders.
Waits(p) == protocol = "aligned" /\ In(p) # {}

Decided == LET all == {Index(p) : p \in Stage} IN IF Mutant = "AnyDecides" THEN Most(all) ELSE Least(all)

\* The newest epoch that sinks may have: that of the newest decided line.
Line(p) == IF Decided = 0 THEN 0 ELSE Serving(p, Decided)
Shows(p) == IF protocol = "index" \/ Mutant = "ShowsCommitted" THEN Len(log[p]) ELSE Line(p)

Nothing == [none |-> 0]

Init ==
  /\ graph \in Graphs /\ protocol \in Protocols
  /\ log = [p \in Stage |-> <<>>]
  /\ read = [g \in Edge |-> 0] /\ had = [p \in Stage |-> 0] /\ cut = [p \in Stage |-> Nothing]
  /\ published = [p \in Stage |-> 0] /\ crashes = 0

----------------------------------------------------------------------------
(* A stage. *)

\* One epoch of the sender may come in, the next may not yet.
Take(g, row) ==
  LET p == graph.edges[g].to IN
  /\ read[g] < row /\ row <= Sent(g)
  /\ Stamp(g, row) <= Index(p) \/ Mutant = "TakesAny"
  /\ read' = [read EXCEPT ![g] = row]
  /\ had' = [had EXCEPT ![p] = @ + row - read[g]]
  /\ UNCHANGED <<fixed, log, cut, published, crashes>>

\* What is read from here on belongs to the next epoch.
Cut(p) ==
  /\ cut[p] = Nothing
  /\ cut' = [cut EXCEPT ![p] = [read |-> Here(p), had |-> had[p]]]
  /\ UNCHANGED <<fixed, log, read, had, published, crashes>>

\* `sent`: per edge, all rows that the stage has sent, with those of this epoch.
Commit(p, index, sent) ==
  /\ cut[p] # Nothing
  /\ IF Waits(p) /\ Mutant # "AlignedByClock" THEN index = Index(p) ELSE index >= Index(p)
  /\ \A g \in Out(p) : sent[g] >= Sent(g)
  /\ LET stamp == IF Mutant = "NoStamp" THEN 0 ELSE Index(p)
         cursor == IF Mutant = "CutAtCommit" THEN Here(p) ELSE cut[p].read IN
     log' = [log EXCEPT ![p] = Append(@, [index |-> index, stamp |-> stamp, read |-> cursor, had |-> cut[p].had, sent |-> sent])]
  /\ cut' = [cut EXCEPT ![p] = Nothing]
  /\ UNCHANGED <<fixed, read, had, published, crashes>>

\* The index before which everything on an edge is read, at a position; an epoch without rows for it holds up nothing.
ReachedOn(g, position) ==
  IF Mutant = "SenderIsEnough" \/ position >= Sent(g) THEN Index(graph.edges[g].from) ELSE Stamp(g, position + 1)

Reached(p) ==
  LET at == IF Mutant = "SaysArrived" THEN Here(p) ELSE Committed(p)
      found == {ReachedOn(g, at[g]) : g \in In(p)} IN
  IF Mutant = "OneInput" THEN Most(found) ELSE Least(found)

\* The newest epoch serves a newer index, too: of a stage that has nothing to save, or that has read its inputs up to it.
Say(p, index) ==
  /\ log[p] # <<>> /\ cut[p] = Nothing /\ index > Index(p)
  /\ IF Waits(p) THEN index <= Reached(p) ELSE Here(p) = Committed(p)
  /\ log' = [log EXCEPT ![p][Len(log[p])].index = index]
  /\ UNCHANGED <<fixed, read, had, cut, published, crashes>>

Publish(p, epoch) ==
  /\ epoch <= Shows(p)
  /\ published' = [published EXCEPT ![p] = Most({@, epoch})]
  /\ UNCHANGED <<fixed, log, read, had, cut, crashes>>

\* It restarts from its newest epoch, and no other stage does.
Crash(p) ==
  /\ crashes < MaxCrash /\ crashes' = crashes + 1
  /\ read' = [g \in Edge |-> IF g \notin In(p) THEN read[g] ELSE IF Mutant = "ReadsAgain" THEN 0 ELSE Committed(p)[g]]
  /\ had' = [had EXCEPT ![p] = IF log[p] = <<>> THEN 0 ELSE Last(p).had]
  /\ cut' = [cut EXCEPT ![p] = Nothing]
  /\ UNCHANGED <<fixed, log, published>>

----------------------------------------------------------------------------
\* In a check of every state: one row at a time, and no epoch that changes nothing.
More(p) == {[g \in Out(p) |-> Sent(g) + (IF g \in some THEN 1 ELSE 0)] : some \in SUBSET {g \in Out(p) : Sent(g) < MaxRows}}

Saves(p, index, sent) ==
  \/ log[p] = <<>> \/ index > Index(p) \/ cut[p].read # Committed(p)
  \/ \E g \in Out(p) : sent[g] > Sent(g)

MaySave(p) ==
  \/ log[p] = <<>> \/ Here(p) # Committed(p) \/ \E g \in Out(p) : Sent(g) < MaxRows
  \/ ~Waits(p) /\ Index(p) < MaxIndex

Work ==
  \/ \E g \in Edge : Take(g, read[g] + 1)
  \/ \E p \in Stage :
       \/ MaySave(p) /\ Cut(p)
       \/ \E index \in 0 .. MaxIndex, sent \in More(p) : cut[p] # Nothing /\ Saves(p, index, sent) /\ Commit(p, index, sent)
       \/ \E index \in 1 .. MaxIndex : Say(p, index)
       \/ published[p] < Shows(p) /\ Publish(p, Shows(p))

Next == Work \/ \E p \in Stage : Crash(p)

Spec == Init /\ [][Next]_vars /\ WF_vars(Work)

----------------------------------------------------------------------------
\* Per edge and line: rows that were read in it, and rows that were sent in it.
LineRead(g, n) == log[graph.edges[g].to][Serving(graph.edges[g].to, n)].read[g]
LineSent(g, n) == log[graph.edges[g].from][Serving(graph.edges[g].from, n)].sent[g]
Numbers == {n \in UNION {{log[p][k].index : k \in 1 .. Len(log[p])} : p \in Stage} : n > 0 /\ \A p \in Stage : n <= Index(p)}

\* No line has a row that was not sent in it ...
NoOrphan == \A n \in Numbers, g \in Edge : LineRead(g, n) <= LineSent(g, n)

\* ... and an aligned one has no row in transit.
NoTransit == protocol = "aligned" => \A n \in Numbers, g \in Edge : LineRead(g, n) = LineSent(g, n)

\* A state has each row before its positions once: in memory, and in every epoch, whoever has restarted.
RECURSIVE Sum(_, _)
Sum(f, some) == IF some = {} THEN 0 ELSE LET g == CHOOSE g \in some : TRUE IN f[g] + Sum(f, some \ {g})
Once == \A p \in Stage :
  /\ had[p] = Sum(read, In(p))
  /\ \A k \in 1 .. Len(log[p]) : log[p][k].had = Sum(log[p][k].read, In(p))

\* No position is beyond what is committed.
Sends == \A g \in Edge : read[g] <= Sent(g)

\* Sinks have no epoch after that of the newest line that every stage serves.
NotTooEarly == \A p \in Stage :
  LET newest == Least({Index(q) : q \in Stage}) IN
  protocol # "index" => published[p] <= (IF newest = 0 THEN 0 ELSE Serving(p, newest))

\* Everything is read, every stage serves the newest index, and sinks have its epoch.
AtRest ==
  /\ \A g \in Edge : read[g] = Sent(g)
  /\ \A p, q \in Stage : Index(p) = Index(q)
  /\ \A p \in Stage : published[p] = Shows(p)

EveryLineEnds == <>[]AtRest
=============================================================================

---------------------------- MODULE DriverLease ----------------------------
(***************************************************************************)
(* Who runs a job: one driver that renews its lease in the job's log, and  *)
(* standbys that watch it by their own clocks, as host/standby.py and      *)
(* store/epoch_log.py have it.  A row is proposed on what was read and is  *)
(* appended by compare-and-swap, so that a driver may stand still between  *)
(* the two.                                                                *)
(*                                                                         *)
(* Time is in ticks; in one tick the clock of n counts Rate[n].  Readings  *)
(* are kept as distances from now; no two clocks are compared.             *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS Node, Rate, TTL, Every, MaxLog, MaxPause, MaxReturn, Bound, Mutant

VARIABLES
  log,      \* rows: the incarnation that wrote each
  holder,   \* the node that began each incarnation
  inc,      \* per node: the incarnation that it believes to be; 0: a standby
  saw,      \* per node: length of the log when it was read last
  rem,      \* per node: left of its wait, by its own clock: for the lease's end, or for its next renewal
  ask,      \* per node: length of the log that its next row was proposed on; 0: none
  paused,   \* nodes that stand still
  pauses, silent, early,
  free,     \* rows that return the lease
  leaving,  \* nodes that have stopped and are about to append one
  returns

vars == <<log, holder, inc, saw, rem, ask, paused, pauses, silent, early, free, leaving, returns>>

Order == <<free, leaving, returns>>
Minus(a, b) == IF a > b THEN a - b ELSE 0
Awake(n) == n \notin paused
Current == log[Len(log)]
Primary == holder[Current]
IsFree == Len(log) \in free

Init ==
  \E first \in Node :
    /\ log = <<1>> /\ holder = <<first>>
    /\ inc = [n \in Node |-> IF n = first THEN 1 ELSE 0]
    /\ saw = [n \in Node |-> 1]
    /\ rem = [n \in Node |-> IF n = first THEN Every ELSE TTL + 1]
    /\ ask = [n \in Node |-> 0]
    /\ paused = {} /\ pauses = 0 /\ silent = 0 /\ early = FALSE
    /\ free = {} /\ leaving = {} /\ returns = 0

----------------------------------------------------------------------------

Term(n) == IF Mutant = "ShortTerm" THEN Every ELSE TTL + 1

\* A standby reads the log: a new row is a new term.
Look(n) ==
  /\ Awake(n) /\ inc[n] = 0 /\ ask[n] = 0 /\ saw[n] < Len(log)
  /\ saw' = [saw EXCEPT ![n] = Len(log)]
  /\ rem' = IF Mutant = "FirstReading" /\ log[saw[n]] = Current THEN rem ELSE [rem EXCEPT ![n] = Term(n)]
  /\ UNCHANGED <<log, holder, inc, ask, paused, pauses, silent, early, Order>>

MayTake(n) ==
  \/ rem[n] = 0
  \/ IsFree /\ Mutant # "WaitsAnyway"
  \/ Mutant = "TakesOnRumour" /\ Primary \in leaving

\* It has read the log once more, nothing is new, and the term has passed or the lease was returned.
Take(n) ==
  /\ Awake(n) /\ inc[n] = 0 /\ ask[n] = 0 /\ saw[n] = Len(log) /\ MayTake(n)
  /\ ask' = [ask EXCEPT ![n] = Len(log)]
  /\ UNCHANGED <<log, holder, inc, saw, rem, paused, pauses, silent, early, Order>>

\* A primary has read the log, finds itself in it, and is about to append: a renewal, or an epoch.
Renew(n) ==
  /\ Awake(n) /\ inc[n] # 0 /\ ask[n] = 0 /\ rem[n] = 0 /\ n \notin leaving
  /\ Current = inc[n]
  /\ ask' = [ask EXCEPT ![n] = Len(log)]
  /\ UNCHANGED <<log, holder, inc, saw, rem, paused, pauses, silent, early, Order>>

\* A primary has read the log and finds another incarnation: it ends, and is started again as a standby.
Fenced(n) ==
  /\ Awake(n) /\ inc[n] # 0 /\ ask[n] = 0 /\ Current # inc[n]
  /\ inc' = [inc EXCEPT ![n] = 0]
  /\ saw' = [saw EXCEPT ![n] = Len(log)]
  /\ rem' = [rem EXCEPT ![n] = Term(n)]
  /\ leaving' = leaving \ {n}
  /\ UNCHANGED <<log, holder, ask, paused, pauses, silent, early, free, returns>>

\* A primary is told to stop, perhaps with a row on its way: that one is not waited for.
Stop(n) ==
  /\ Awake(n) /\ inc[n] # 0 /\ n \notin leaving /\ returns < MaxReturn
  /\ leaving' = leaving \cup {n} /\ returns' = returns + 1
  /\ ask' = [ask EXCEPT ![n] = 0]
  /\ UNCHANGED <<log, holder, inc, saw, rem, paused, pauses, silent, early, free>>

\* It has stopped, has read the log, finds itself in it, and is about to append its return.
Leave(n) ==
  /\ Awake(n) /\ n \in leaving /\ ask[n] = 0 /\ Current = inc[n]
  /\ ask' = [ask EXCEPT ![n] = Len(log)]
  /\ UNCHANGED <<log, holder, inc, saw, rem, paused, pauses, silent, early, Order>>

Admitted(n) ==
  \/ ask[n] = Len(log)
  \/ Mutant = "NoCompare" /\ inc[n] # 0
  \/ Mutant = "NoToken" /\ inc[n] = 0
  \/ Mutant = "LateReturn" /\ n \in leaving

\* The number of the incarnation that a standby begins.
Begun == IF Mutant = "ClearsNumber" /\ IsFree THEN 1 ELSE Len(holder) + 1

\* The compare-and-swap.
Land(n) ==
  /\ Awake(n) /\ ask[n] # 0
  /\ ask' = [ask EXCEPT ![n] = 0]
  /\ IF ~Admitted(n)
     THEN UNCHANGED <<log, holder, inc, saw, rem, silent, early, free, leaving>>
     ELSE /\ Len(log) < MaxLog
          /\ IF inc[n] # 0
             THEN /\ log' = Append(log, inc[n])
                  /\ inc' = IF n \in leaving /\ Mutant # "GoesOn" THEN [inc EXCEPT ![n] = 0] ELSE inc
                  /\ UNCHANGED <<holder, early>>
             ELSE /\ log' = Append(log, Begun)
                  /\ holder' = Append(holder, n)
                  /\ inc' = [inc EXCEPT ![n] = Begun]
                  /\ early' = (early \/ (Awake(Primary) /\ inc[Primary] = Current /\ silent * Rate[Primary] <= Every))
          /\ saw' = [saw EXCEPT ![n] = Len(log) + 1]
          /\ rem' = [rem EXCEPT ![n] = IF n \in leaving THEN Term(n) ELSE Every]
          /\ free' = IF n \in leaving THEN free \cup {Len(log) + 1} ELSE free
          /\ leaving' = leaving \ {n}
          /\ silent' = 0
  /\ UNCHANGED <<paused, pauses, returns>>

----------------------------------------------------------------------------

Pause(n) ==
  /\ Awake(n) /\ pauses < MaxPause /\ paused = {}
  /\ paused' = {n} /\ pauses' = pauses + 1
  /\ UNCHANGED <<log, holder, inc, saw, rem, ask, silent, early, Order>>

Resume(n) ==
  /\ n \in paused
  /\ paused' = {}
  /\ UNCHANGED <<log, holder, inc, saw, rem, ask, pauses, silent, early, Order>>

Due(n) == Awake(n) /\ (\/ ask[n] # 0
                       \/ inc[n] = 0 /\ (saw[n] < Len(log) \/ MayTake(n))
                       \/ inc[n] # 0 /\ (rem[n] = 0 \/ n \in leaving \/ Current # inc[n]))

\* Whoever is awake does what is due before time passes.
Pass ==
  /\ Len(log) < MaxLog
  /\ \A n \in Node : ~Due(n)
  /\ rem' = [n \in Node |-> Minus(rem[n], Rate[n])]
  /\ silent' = silent + 1
  /\ UNCHANGED <<log, holder, inc, saw, ask, paused, pauses, early, Order>>

Next == Pass \/ \E n \in Node : Look(n) \/ Take(n) \/ Renew(n) \/ Fenced(n) \/ Stop(n) \/ Leave(n) \/ Land(n) \/ Pause(n) \/ Resume(n)

Spec == Init /\ [][Next]_vars

----------------------------------------------------------------------------
(* What must hold. *)

\* A row of an incarnation that was replaced is never behind its successor's: what it commits does not count, for it is not there.
OneAtATime == \A i \in 1 .. Len(log) - 1 : log[i] <= log[i + 1]

\* Nobody is replaced who renews in time, whatever the clocks.
NotEarly == ~early

\* Behind its return there is no row of an incarnation: nothing that it commits counts, and its number is not used again.
NothingReturned == \A i \in free : \A j \in i + 1 .. Len(log) : log[j] > log[i]

\* A lease that was returned is taken at once: no time passes while a standby is awake.
AtOnce == IsFree => silent = 0

\* No lease is silent for longer than the bound while a standby is awake.
Soon == silent <= Bound
=============================================================================

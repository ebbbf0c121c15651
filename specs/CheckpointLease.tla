-------------------------- MODULE CheckpointLease --------------------------
(***************************************************************************)
(* The checkpoint lease of seed 002 as checkpoint_protocols/lease/ has     *)
(* it: clocks of different rates, a deadline that a new primary begins     *)
(* anew, boot numbers, uploads that arrive late, a store that compares     *)
(* tokens.  The published model has one global timeout that ends all       *)
(* leases at once, so that none of this can go wrong in it.                *)
(*                                                                         *)
(* Time is in ticks; in one tick the clock of n counts Rate[n].  Readings  *)
(* are kept as distances from now.  The log is consensus itself: chosen at *)
(* once, executed by everybody when he likes.  Links are delays.           *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS Node, Rate, TTL, Budget, MaxLog, MaxCrash, MaxReturn, Mutant

None == "none"

VARIABLES
  up, boot, phase, exec, lease, rem, payload,  \* per node; lease: index or 0
  log, left,                    \* entries [node, boot]; time left of each, by its holder's clock
  leader, out, wait, heard,     \* the primary: lease it waits for, its time left; age of reports
  uploads, ckpt, published,     \* on the way to the store; the newest there; tokens in order
  crashes,
  said, returned                \* returns under way; every lease whose holder said that it stops

vars == <<up, boot, phase, exec, lease, rem, payload, log, left, leader, out, wait, heard,
          uploads, ckpt, published, crashes, said, returned>>

Returns == <<said, returned>>
Minus(a, b) == IF a > b THEN a - b ELSE 0
Least(a, b) == IF a < b THEN a ELSE b
Active == {"can", "taking", "pub"}
Unheard == [boot |-> 0, age |-> 0]
Quorum == 2 * Cardinality({n \in Node : up[n]}) > Cardinality(Node)

Init ==
  /\ up = [n \in Node |-> TRUE] /\ boot = [n \in Node |-> 1]
  /\ phase = [n \in Node |-> "idle"] /\ exec = [n \in Node |-> 0]
  /\ lease = [n \in Node |-> 0] /\ rem = [n \in Node |-> 0] /\ payload = [n \in Node |-> 0]
  /\ log = <<>> /\ left = <<>>
  /\ leader = None /\ out = 0 /\ wait = 0 /\ heard = [n \in Node |-> Unheard]
  /\ uploads = {} /\ ckpt = [token |-> 0, applied |-> 0] /\ published = <<>>
  /\ crashes = 0 /\ said = {} /\ returned = {}

----------------------------------------------------------------------------
(* The primary. *)

Forgets(n) ==
  \/ Mutant = "ForgetLease"
  \/ Mutant = "PreemptAnyBoot" /\ lease[n] # 0 /\ log[lease[n]].node = n

Elect(n) ==
  /\ leader = None /\ up[n] /\ Quorum
  /\ phase[n] \in {"idle", "can"}
  /\ Mutant # "PossessNotExecute" => exec[n] = Len(log)
  /\ leader' = n
  /\ phase' = IF Mutant = "KeepRight" THEN phase ELSE [phase EXCEPT ![n] = "idle"]
  /\ rem' = IF Mutant = "KeepRight" THEN rem ELSE [rem EXCEPT ![n] = 0]
  /\ out' = IF Forgets(n) THEN 0 ELSE lease[n]
  /\ wait' = IF out' = 0 THEN 0 ELSE TTL + 1
  /\ heard' = [m \in Node |-> Unheard]
  /\ UNCHANGED <<up, boot, exec, lease, payload, log, left, uploads, ckpt, published, crashes, Returns>>

Used(n) == out # 0 /\ exec[leader] >= out /\ log[out].node = n /\ payload[n] >= out

\* A report is heard at once; that it was under way for long is that it is old when it is used.
Hear(n) ==
  /\ leader # None /\ up[n] /\ n # leader
  /\ heard' = [heard EXCEPT ![n] = [boot |-> boot[n], age |-> 0]]
  /\ out' = IF Used(n) THEN 0 ELSE out
  /\ wait' = IF Used(n) THEN 0 ELSE wait
  /\ UNCHANGED <<up, boot, phase, exec, lease, rem, payload, log, left, leader, uploads, ckpt,
                 published, crashes, Returns>>

\* Only those that matter.
Report(n) == (out = 0 \/ wait = 0 \/ Used(n)) /\ Hear(n)

Issue(n) ==
  /\ leader # None /\ Quorum /\ n # leader
  /\ out = 0 \/ wait = 0
  /\ heard[n] # Unheard /\ Len(log) < MaxLog
  /\ log' = Append(log, [node |-> n, boot |-> heard[n].boot])
  /\ left' = Append(left, Minus(Budget, heard[n].age))
  /\ out' = Len(log) + 1
  /\ wait' = TTL + 1
  /\ UNCHANGED <<up, boot, phase, exec, lease, rem, payload, leader, heard, uploads, ckpt, published,
                 crashes, Returns>>

----------------------------------------------------------------------------
(* Replicas. *)

Mine(n, i) ==
  /\ log[i].node = n /\ n # leader
  /\ log[i].boot = boot[n] \/ Mutant = "PreemptAnyBoot"
  /\ left[i] > 0 \/ Mutant = "TimerAtExecution"

Execute(n) ==
  LET i == exec[n] + 1 IN
  /\ up[n] /\ phase[n] \in {"idle", "can"} /\ i <= Len(log)
  /\ exec' = [exec EXCEPT ![n] = i]
  /\ lease' = [lease EXCEPT ![n] = i]
  /\ phase' = [phase EXCEPT ![n] = IF Mine(n, i) THEN "can" ELSE "idle"]
  /\ rem' = [rem EXCEPT ![n] = IF ~Mine(n, i) THEN 0
                               ELSE IF Mutant = "TimerAtExecution" THEN Budget ELSE left[i]]
  /\ UNCHANGED <<up, boot, payload, log, left, leader, out, wait, heard, uploads, ckpt, published,
                 crashes, Returns>>

Start(n) ==
  /\ phase[n] = "can" /\ rem[n] > 0
  /\ phase' = [phase EXCEPT ![n] = "taking"]
  /\ UNCHANGED <<up, boot, exec, lease, rem, payload, log, left, leader, out, wait, heard, uploads,
                 ckpt, published, crashes, Returns>>

Write(n) ==
  /\ phase[n] = "taking" /\ rem[n] > 0
  /\ phase' = [phase EXCEPT ![n] = "pub"]
  /\ uploads' = uploads \cup {[node |-> n, boot |-> boot[n], token |-> lease[n], applied |-> exec[n]]}
  /\ UNCHANGED <<up, boot, exec, lease, rem, payload, log, left, leader, out, wait, heard, ckpt,
                 published, crashes, Returns>>

Elapse(n) ==
  /\ phase[n] \in Active /\ rem[n] = 0 /\ Mutant # "NeverElapses"
  /\ phase' = [phase EXCEPT ![n] = "idle"]
  /\ UNCHANGED <<up, boot, exec, lease, rem, payload, log, left, leader, out, wait, heard, uploads,
                 ckpt, published, crashes, Returns>>

Admitted(u) == u.token > ckpt.token \/ Mutant = "NoFence"

\* The store compares and, unless the answer is lost, the holder hears of it.
Land(u, answered) ==
  LET n == u.node
      hears == answered /\ up[n] /\ boot[n] = u.boot /\ phase[n] = "pub" /\ lease[n] = u.token
      done == hears /\ Admitted(u) IN
  /\ uploads' = uploads \ {u}
  /\ ckpt' = IF Admitted(u) THEN [token |-> u.token, applied |-> u.applied] ELSE ckpt
  /\ published' = IF Admitted(u) THEN Append(published, u.token) ELSE published
  /\ phase' = IF hears THEN [phase EXCEPT ![n] = "idle"] ELSE phase
  /\ rem' = IF hears THEN [rem EXCEPT ![n] = 0] ELSE rem
  /\ payload' = IF done THEN [payload EXCEPT ![n] = exec[n]] ELSE payload
  /\ lease' = IF done THEN [lease EXCEPT ![n] = 0] ELSE lease
  /\ UNCHANGED <<up, boot, exec, log, left, leader, out, wait, heard, crashes, Returns>>

----------------------------------------------------------------------------
(* Returns. *)

\* The holder stops and says so. What it has uploaded it cannot take back.
Return(n) ==
  /\ phase[n] \in {"can", "taking"} \/ (Mutant = "ReturnsUploads" /\ phase[n] = "pub")
  /\ Cardinality(returned) < MaxReturn
  /\ IF Mutant = "GoesOn" THEN UNCHANGED <<phase, rem>>
     ELSE phase' = [phase EXCEPT ![n] = "idle"] /\ rem' = [rem EXCEPT ![n] = 0]
  /\ said' = said \cup {lease[n]} /\ returned' = returned \cup {lease[n]}
  /\ UNCHANGED <<up, boot, exec, lease, payload, log, left, leader, out, wait, heard, uploads, ckpt,
                 published, crashes>>

Freed(t) == out = t \/ Mutant = "AnyReturn"

\* The primary hears of it, perhaps once more later; nobody has to.
HearReturn(t, again) ==
  /\ leader # None /\ exec[leader] >= t /\ t \in said
  /\ said' = IF again THEN said ELSE said \ {t}
  /\ out' = IF Freed(t) THEN 0 ELSE out
  /\ wait' = IF Freed(t) THEN 0 ELSE wait
  /\ ckpt' = IF Mutant = "ClearsFence" THEN [ckpt EXCEPT !.token = 0] ELSE ckpt
  /\ UNCHANGED <<up, boot, phase, exec, lease, rem, payload, log, left, leader, heard, uploads,
                 published, crashes, returned>>

\* The life that has the lease is known to be over.
Gone ==
  /\ MaxReturn > 0 /\ leader # None /\ out # 0 /\ exec[leader] >= out
  /\ ~up[log[out].node] \/ boot[log[out].node] # log[out].boot
  /\ out' = 0 /\ wait' = 0
  /\ UNCHANGED <<up, boot, phase, exec, lease, rem, payload, log, left, leader, heard, uploads, ckpt,
                 published, crashes, Returns>>

----------------------------------------------------------------------------
(* Surroundings. *)

Crash(n) ==
  /\ up[n] /\ crashes < MaxCrash
  /\ crashes' = crashes + 1
  /\ up' = [up EXCEPT ![n] = FALSE]
  /\ phase' = [phase EXCEPT ![n] = "idle"] /\ rem' = [rem EXCEPT ![n] = 0]
  /\ exec' = [exec EXCEPT ![n] = 0] /\ lease' = [lease EXCEPT ![n] = 0]
  /\ leader' = IF leader = n THEN None ELSE leader
  /\ out' = IF leader = n THEN 0 ELSE out
  /\ wait' = IF leader = n THEN 0 ELSE wait
  /\ heard' = IF leader = n THEN [m \in Node |-> Unheard] ELSE heard
  /\ UNCHANGED <<boot, payload, log, left, uploads, ckpt, published, Returns>>

Recover(n) ==
  /\ ~up[n]
  /\ up' = [up EXCEPT ![n] = TRUE] /\ boot' = [boot EXCEPT ![n] = @ + 1]
  /\ exec' = [exec EXCEPT ![n] = ckpt.applied]
  /\ UNCHANGED <<phase, lease, rem, payload, log, left, leader, out, wait, heard, uploads, ckpt,
                 published, crashes, Returns>>

\* Whatever is due happens before time passes.
Pass(ticks) ==
  /\ \A n \in Node : phase[n] \in Active => rem[n] >= ticks * Rate[n]
  /\ \A n \in Node : phase[n] \in Active => rem[n] > 0
  /\ rem' = [n \in Node |-> Minus(rem[n], ticks * Rate[n])]
  /\ left' = [i \in DOMAIN left |-> Minus(left[i], ticks * Rate[log[i].node])]
  /\ heard' = [n \in Node |-> IF heard[n] = Unheard THEN Unheard
                              ELSE [heard[n] EXCEPT !.age = Least(Budget, @ + ticks * Rate[n])]]
  /\ wait' = IF leader # None /\ out # 0 /\ exec[leader] >= out
             THEN Minus(wait, ticks * Rate[leader]) ELSE wait
  /\ UNCHANGED <<up, boot, phase, exec, lease, payload, log, leader, out, uploads, ckpt, published,
                 crashes, Returns>>

Next ==
  \/ \E n \in Node : \/ Elect(n) \/ Report(n) \/ Issue(n) \/ Execute(n) \/ Start(n) \/ Write(n)
                     \/ Elapse(n) \/ Crash(n) \/ Recover(n) \/ Return(n)
  \/ \E t \in said, again \in BOOLEAN : HearReturn(t, again)
  \/ Gone
  \/ \E u \in uploads, answered \in BOOLEAN : Land(u, answered)
  \/ Pass(1)

Spec == Init /\ [][Next]_vars

Fair ==
  /\ WF_vars(Pass(1)) /\ \A n \in Node : WF_vars(Elapse(n)) /\ WF_vars(Execute(n))

FairSpec == Spec /\ Fair

----------------------------------------------------------------------------
(* What must hold. *)

Holds(n) == phase[n] \in {"can", "taking"} /\ rem[n] > 0

TypeOK ==
  /\ \A n \in Node : phase[n] \in {"idle"} \cup Active
  /\ \A n \in Node : exec[n] <= Len(log) /\ lease[n] <= Len(log)
  /\ Len(left) = Len(log) /\ out <= Len(log)

AtMostOne == \A m, n \in Node : Holds(m) /\ Holds(n) => m = n

PrimaryTakesNone == leader # None => ~Holds(leader)

PrimaryKnows ==
  leader # None => \A n \in Node : Holds(n) => out # 0 /\ log[out].node = n

OwnLease == \A n \in Node : Holds(n) => lease[n] # 0 /\ log[lease[n]].node = n

TokensIncrease == \A i \in 1 .. Len(published) - 1 : published[i] < published[i + 1]

NothingReturned ==
  /\ \A i \in 1 .. Len(published) : published[i] \notin returned
  /\ \A n \in Node : Holds(n) => lease[n] \notin returned

FenceStays == published # <<>> => ckpt.token = published[Len(published)]

EveryRightEnds == \A n \in Node : (phase[n] \in Active) ~> (phase[n] \notin Active)
=============================================================================

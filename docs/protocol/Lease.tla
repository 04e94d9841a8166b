------------------------------- MODULE Lease -------------------------------
(* The right to write: leases, their take-over, the lock of a table, and commits. docs/concepts/lease-protocol.md says
   what each action is in the code. A process that is in time may write, and no two may where one would harm the other,
   although clocks drift and jump, processes pause and die, and messages are late or lost.

   All times are in ticks. One tick passes for all at once. Drift is what a lease and the patience of whoever waits for
   it may differ by, because their clocks run at other rates. The database's clock may jump to any time. *)
EXTENDS Naturals, FiniteSets, TLC

CONSTANTS
    Processes, Leases,    \* the window of the table is the lease "window", any other one is that of a flow
    Stores, Breaks,       \* of which each behaviour has one; "none" is the protocol as it is built
    Ttl,                  \* of a lease, by the database's clock
    Deadline,             \* since its last renewal was sent, from which on a process ends itself
    Halt,                 \* how long that takes at most
    Flight,               \* how long a store that replaces may take to execute a request
    Drift

VARIABLES
    store,                \* "disk": all on one machine; "refuses" to replace a version; "replaces" it
    machine,              \* of each process
    break,                \* what is broken
    row,                  \* of each lease, in the control database
    process,
    isLost                \* whether a committed version has been overwritten

vars == <<store, machine, break, row, process, isLost>>

Nobody == "nobody"
Limit == Deadline + Halt
ASSUME Limit + Flight < Ttl - Drift

DeadlineOf == IF break = "no margin" THEN Ttl ELSE Deadline
LimitOf == DeadlineOf + Halt
Min(a, b) == IF a < b THEN a ELSE b
SomeLease == CHOOSE l \in Leases : TRUE

(* unchanged: ticks since anybody has changed the row. isGhost: the holder is an earlier process of that name. *)
NoRow == [holder |-> Nobody, isGhost |-> FALSE, expires |-> 0, isReleased |-> TRUE, unchanged |-> 0, mode |-> "none"]

(* holds: it believes so. isNewest: no later take of that lease has been executed. age: ticks since its last renewal was
   sent. request, at: what it asks the database, and how far that is. sent: ticks since then. sees: the lease `target`
   is as it was read. writes: it is behind the gate. leaves: it has to give the lock back. isBehind: the table has a
   version that its commit does not know. *)
Idle == [request |-> "none", at |-> "none", sent |-> 0]
Dead == Idle @@ [is |-> "dead", want |-> SomeLease, holds |-> FALSE, isNewest |-> FALSE, age |-> 0, sees |-> FALSE,
                 target |-> SomeLease, writes |-> FALSE, leaves |-> FALSE, commit |-> FALSE, isBehind |-> FALSE,
                 flight |-> 0]

First == CHOOSE p \in Processes : TRUE

Situations ==
    /\ store \in Stores
    /\ machine \in [Processes -> {"here", "there"}]
    /\ machine[First] = "here"
    /\ store = "disk" => \A p \in Processes : machine[p] = "here"
    /\ break \in Breaks
    /\ isLost = FALSE

Init ==
    /\ Situations
    /\ row = [l \in Leases |-> NoRow]
    /\ process = [p \in Processes |-> Dead]

-----------------------------------------------------------------------------
(* What the actions are made of. *)

Is(p, state) == process[p].is = state
IsFree(p) == Is(p, "up") /\ process[p].request = "none"
Set(p, changes) == process' = [process EXCEPT ![p] = changes @@ @]
Others == UNCHANGED <<store, machine, break>>

(* What is left of a process: its request to the database, and to a store elsewhere, may still be executed. A store that
   replaces is safe only if such a request is executed before another process of the machine has read the table. *)
Remains(q) ==
    LET old == process[q]
        isAsked == old.at = "sent"
        isAmongOthers == \E p \in Processes : p # q /\ machine[p] = machine[q]
        isCommitting == old.commit /\ (store = "refuses" \/ (store = "replaces" /\ ~isAmongOthers))
    IN [Dead EXCEPT !.request = IF isAsked THEN old.request ELSE @, !.at = IF isAsked THEN "sent" ELSE @,
                    !.want = IF isAsked THEN old.want ELSE @, !.isNewest = isAsked /\ old.isNewest,
                    !.leaves = isAsked /\ old.leaves, !.sees = isAsked /\ old.sees,
                    !.target = IF isAsked THEN old.target ELSE @,
                    !.commit = isCommitting, !.isBehind = isCommitting /\ old.isBehind,
                    !.flight = IF isCommitting THEN old.flight ELSE 0]

IsLocal(p, l) == row[l].holder # Nobody /\ machine[row[l].holder] = machine[p]
IsGone(p, l) == row[l].expires = 0 \/ (IsLocal(p, l) /\ (row[l].isGhost \/ Is(row[l].holder, "dead")))
(* Its holder can be killed, or has had to end itself by now. *)
CanFollow(p, l) == IsLocal(p, l) \/ row[l].unchanged + Drift >= Ttl \/ break = "no sighting"
IsVacant(p, l) == row[l].isReleased \/ (IsGone(p, l) /\ CanFollow(p, l))

ModeOf(l) == IF l = "window" \/ (store # "refuses" /\ break # "shared where replaced") THEN "alone" ELSE "shared"
Blocks(other, mode) ==
    IF mode = "alone" THEN other = "alone" \/ (other = "shared" /\ break # "no lock") ELSE other \in {"alone", "wants"}
Blockers(l) == {k \in Leases \ {l} : ~row[k].isReleased /\ Blocks(row[k].mode, ModeOf(l))}

(* The processes after the row of `l` has changed: nobody sees it as it was. `changes` are those of p itself. *)
Changed(p, l, changes) ==
    [q \in Processes |->
        LET seen == [process[q] EXCEPT !.sees = @ /\ ~(process[q].target = l)]
        IN IF q = p THEN changes @@ seen ELSE seen]
(* A dead process reads no answer. *)
Answered(p, answer) ==
    IF Is(p, "dead") THEN [Idle EXCEPT !.at = "none"] @@ [isNewest |-> FALSE, want |-> SomeLease, leaves |-> FALSE,
                                                         sees |-> FALSE, target |-> SomeLease]
    ELSE [at |-> answer]

(* For short runs: one process has just taken a lease, and the others are to begin. *)
Begun ==
    /\ Situations
    /\ \E wants \in [Processes -> Leases] :
          /\ row = [l \in Leases |-> IF l # wants[First] THEN NoRow
                                    ELSE [NoRow EXCEPT !.holder = First, !.expires = Ttl, !.isReleased = FALSE]]
          /\ process = [p \in Processes |-> [Dead EXCEPT !.is = "up", !.want = wants[p], !.holds = p = First,
                                                         !.isNewest = p = First]]

-----------------------------------------------------------------------------
(* Processes *)

Start(p) ==
    /\ process[p] = Dead
    /\ \E l \in Leases : Set(p, [is |-> "up", want |-> l])
    /\ row' = [l \in Leases |-> IF row[l].holder = p THEN [row[l] EXCEPT !.isGhost = TRUE] ELSE row[l]]
    /\ UNCHANGED isLost /\ Others

Die(p) ==
    /\ process[p].is # "dead"
    /\ process' = [process EXCEPT ![p] = Remains(p)]
    /\ UNCHANGED <<row, isLost>> /\ Others

Pause(p) == Is(p, "up") /\ Set(p, [is |-> "paused"]) /\ UNCHANGED <<row, isLost>> /\ Others

Resume(p) == Is(p, "paused") /\ Set(p, [is |-> "up"]) /\ UNCHANGED <<row, isLost>> /\ Others

(* It ends itself, because it could not renew in time. *)
Stop(p) ==
    /\ Is(p, "up") /\ process[p].holds /\ process[p].age >= DeadlineOf
    /\ process' = [process EXCEPT ![p] = Remains(p)]
    /\ UNCHANGED <<row, isLost>> /\ Others

-----------------------------------------------------------------------------
(* Requests to the control database. Each is sent, then executed in one transaction, then answered. *)

Send(p, request, changes) ==
    /\ Set(p, changes @@ [request |-> request, at |-> "sent", sent |-> 0])
    /\ UNCHANGED <<row, isLost>> /\ Others

Acquire(p) ==
    /\ IsFree(p) /\ ~process[p].holds
    /\ Send(p, "look", [target |-> process[p].want, sees |-> FALSE])

Renew(p) == IsFree(p) /\ process[p].holds /\ Send(p, "renew", <<>>)

Enter(p) == IsFree(p) /\ process[p].holds /\ ~process[p].writes /\ Send(p, "enter", <<>>)

Leave(p) ==
    /\ IsFree(p) /\ process[p].writes /\ ~process[p].commit
    /\ Send(p, "renew", [writes |-> FALSE, leaves |-> TRUE, isBehind |-> FALSE])

GiveBack(p) ==
    /\ IsFree(p) /\ process[p].holds /\ ~process[p].writes
    /\ Send(p, "release", [holds |-> FALSE, age |-> 0])

ExecuteLook(p) ==
    LET isVacant == IsVacant(p, process[p].want)
    IN Set(p, Answered(p, IF isVacant THEN "ok" ELSE "no") @@ [sees |-> isVacant /\ ~Is(p, "dead")]) /\ UNCHANGED row

ExecuteTake(p) ==
    LET l == process[p].want
        answered == Answered(p, "ok") @@ [isNewest |-> TRUE, sees |-> FALSE]
        isFormer(q) == q # p /\ process[q].want = l /\ break # "same epoch"
    IN IF process[p].sees \/ break = "no compare"
       THEN /\ row' = [row EXCEPT ![l] = [NoRow EXCEPT !.holder = p, !.expires = Ttl, !.isReleased = FALSE]]
            /\ process' = [q \in Processes |->
                              IF isFormer(q) THEN [Changed(p, l, answered)[q] EXCEPT !.isNewest = FALSE]
                              ELSE Changed(p, l, answered)[q]]
       ELSE Set(p, Answered(p, "no")) /\ UNCHANGED row

IsHeld(p) ==
    LET l == process[p].want
    IN process[p].isNewest /\ (~row[l].isReleased \/ (break = "renews released" /\ row[l].holder = p))
Renewed(p) ==
    [row[process[p].want] EXCEPT !.expires = Ttl, !.unchanged = 0, !.isReleased = FALSE,
                                 !.mode = IF process[p].leaves THEN "none" ELSE @]

ExecuteRenew(p) ==
    LET l == process[p].want
    IN IF IsHeld(p)
       THEN /\ row' = [row EXCEPT ![l] = Renewed(p)]
            /\ process' = Changed(p, l, Answered(p, "ok"))
       ELSE Set(p, Answered(p, "no")) /\ UNCHANGED row

ExecuteEnter(p) ==
    LET l == process[p].want
        waiting == IF ModeOf(l) = "alone" THEN "wants" ELSE Renewed(p).mode
        isExpelled(k) == IsGone(p, k) /\ CanFollow(p, k)
    IN CASE ~IsHeld(p) -> Set(p, Answered(p, "no")) /\ UNCHANGED row
         [] IsHeld(p) /\ Blockers(l) = {} ->
              /\ row' = [row EXCEPT ![l] = [Renewed(p) EXCEPT !.mode = ModeOf(l)]]
              /\ process' = Changed(p, l, Answered(p, "ok"))
         [] OTHER -> \E k \in Blockers(l) :
              /\ row' = [row EXCEPT ![l] = [Renewed(p) EXCEPT !.mode = waiting]]
              /\ process' = Changed(p, l, IF Is(p, "dead") \/ ~isExpelled(k) THEN Answered(p, "blocked")
                                          ELSE [at |-> "gone", target |-> k, sees |-> TRUE])

ExecuteExpel(p) ==
    LET l == process[p].target
    IN IF process[p].sees
       THEN /\ row' = [row EXCEPT ![l] = [@ EXCEPT !.isReleased = TRUE, !.expires = 0, !.unchanged = 0]]
            /\ process' = Changed(p, l, Answered(p, "ok"))
       ELSE Set(p, Answered(p, "no")) /\ UNCHANGED row

ExecuteRelease(p) ==
    LET l == process[p].want
    IN IF IsHeld(p)
       THEN /\ row' = [row EXCEPT ![l] = [@ EXCEPT !.isReleased = TRUE, !.expires = 0, !.unchanged = 0]]
            /\ process' = Changed(p, l, Answered(p, "ok"))
       ELSE Set(p, Answered(p, "no")) /\ UNCHANGED row

Execute(p) ==
    /\ process[p].at = "sent"
    /\ CASE process[p].request = "look" -> ExecuteLook(p)
         [] process[p].request = "take" -> ExecuteTake(p)
         [] process[p].request = "renew" -> ExecuteRenew(p)
         [] process[p].request = "enter" -> ExecuteEnter(p)
         [] process[p].request = "expel" -> ExecuteExpel(p)
         [] process[p].request = "release" -> ExecuteRelease(p)
    /\ UNCHANGED isLost /\ Others

(* The former holder is killed before the lease changes hands. *)
Follow(p, request, changes) ==
    LET former == row[process[p].target].holder
        isKilled == process[p].sees /\ ~row[process[p].target].isReleased /\ ~row[process[p].target].isGhost
                    /\ former # p /\ IsLocal(p, process[p].target) /\ break # "no kill"
    IN process' = [q \in Processes |->
                      IF q = p THEN changes @@ [request |-> request, at |-> "sent", sent |-> 0] @@ process[p]
                      ELSE IF isKilled /\ q = former /\ ~Is(q, "dead") THEN Remains(q) ELSE process[q]]

Receive(p) ==
    LET self == process[p]
        renewed == [age |-> IF break = "deadline from answer" THEN 0 ELSE self.sent,
                    leaves |-> self.leaves /\ break = "leave again"]
    IN /\ Is(p, "up") /\ self.at \in {"ok", "no", "blocked", "gone"}
       /\ CASE self.request = "look" /\ self.at = "ok" -> Follow(p, "take", <<>>)
            [] self.request = "take" /\ self.at = "ok" -> Set(p, Idle @@ [holds |-> TRUE, age |-> self.sent])
            [] self.request = "renew" /\ self.at = "ok" -> Set(p, Idle @@ renewed)
            [] self.request = "enter" /\ self.at = "ok" -> Set(p, Idle @@ renewed @@ [writes |-> TRUE])
            [] self.request = "enter" /\ self.at = "blocked" -> Set(p, Idle @@ renewed)
            [] self.request = "enter" /\ self.at = "gone" -> Follow(p, "expel", renewed)
            [] self.request \in {"renew", "enter"} /\ self.at = "no" -> process' = [process EXCEPT ![p] = Remains(p)]
            [] OTHER -> Set(p, Idle @@ [sees |-> FALSE])
       /\ UNCHANGED <<row, isLost>> /\ Others

(* The request, or its answer, does not arrive. *)
Lose(p) ==
    /\ process[p].request # "none"
    /\ IF Is(p, "dead") THEN Set(p, Answered(p, "none")) ELSE Set(p, Idle @@ [sees |-> FALSE])
    /\ UNCHANGED <<row, isLost>> /\ Others

-----------------------------------------------------------------------------
(* Commits. A process reads the newest version of the table behind the gate, and commits the next one. *)

Commit(p) ==
    /\ Is(p, "up") /\ process[p].writes /\ ~process[p].commit
    /\ Set(p, [commit |-> TRUE, flight |-> 0])
    /\ UNCHANGED <<row, isLost>> /\ Others

(* The store executes it. If the store refuses, the process finds out what it missed, and may commit again. *)
Land(p) ==
    LET isRefused == store = "refuses" /\ process[p].isBehind
        landed == [process[p] EXCEPT !.commit = FALSE, !.isBehind = FALSE, !.flight = 0]
    IN /\ process[p].commit /\ (store = "disk" => Is(p, "up"))
       /\ process' = [q \in Processes |->
                         IF q = p THEN landed
                         ELSE [process[q] EXCEPT !.isBehind = (@ \/ ~isRefused)
                                                              /\ (process[q].writes \/ process[q].commit)]]
       /\ isLost' = (isLost \/ (process[p].isBehind /\ ~isRefused))
       /\ UNCHANGED row /\ Others

-----------------------------------------------------------------------------
(* Time *)

(* A process that runs ends itself in time. That cannot be said of one that is paused, so a store that replaces is safe
   only if no process of another machine pauses beyond its limit, and no request takes longer than Flight. *)
MayPass(p) ==
    /\ Is(p, "up") /\ process[p].holds => process[p].age < LimitOf
    /\ store = "replaces" => /\ Is(p, "paused") /\ process[p].holds => process[p].age < LimitOf
                             /\ process[p].commit => process[p].flight < Flight

Tick ==
    /\ \A p \in Processes : MayPass(p)
    /\ row' = [l \in Leases |->
                  [row[l] EXCEPT !.expires = IF @ = 0 THEN 0 ELSE @ - 1,
                                 !.unchanged = IF row[l].isReleased THEN 0 ELSE Min(Ttl, @ + 1)]]
    /\ process' = [p \in Processes |->
                      LET self == process[p]
                          isStill == break = "clock stops" /\ Is(p, "paused")
                      IN [self EXCEPT
                             !.age = IF self.holds /\ ~isStill THEN Min(LimitOf + 1, @ + 1) ELSE @,
                             !.sent = IF self.request \in {"take", "renew", "enter"} /\ ~isStill /\ ~Is(p, "dead")
                                      THEN Min(LimitOf + 1, @ + 1) ELSE @,
                             !.flight = IF self.commit /\ store = "replaces" THEN Min(Flight, @ + 1) ELSE @]]
    /\ UNCHANGED isLost /\ Others

(* The clock of the database is set. Later times than these change nothing more. *)
SetForward ==
    /\ row' = [l \in Leases |-> [row[l] EXCEPT !.expires = 0]]
    /\ UNCHANGED <<process, isLost>> /\ Others

SetBack ==
    /\ row' = [l \in Leases |-> IF row[l].isReleased THEN row[l] ELSE [row[l] EXCEPT !.expires = Ttl]]
    /\ UNCHANGED <<process, isLost>> /\ Others

-----------------------------------------------------------------------------

Next ==
    \/ Tick \/ SetForward \/ SetBack
    \/ \E p \in Processes :
          \/ Start(p) \/ Die(p) \/ Pause(p) \/ Resume(p) \/ Stop(p)
          \/ Acquire(p) \/ Renew(p) \/ Enter(p) \/ Leave(p) \/ GiveBack(p)
          \/ Execute(p) \/ Receive(p) \/ Lose(p)
          \/ Commit(p) \/ Land(p)

Spec == Init /\ [][Next]_vars

(* A process that was paused for too long is not in time until it has renewed or ended itself. What it sends then has to
   fail by itself. *)
IsInTime(p) == Is(p, "up") /\ process[p].holds /\ process[p].age <= LimitOf

OneHolder == \A p, q \in Processes : p # q /\ IsInTime(p) /\ IsInTime(q) => process[p].want # process[q].want

Writes(p) == IsInTime(p) /\ process[p].writes
WritersAgree ==
    \A p, q \in Processes :
        p # q /\ Writes(p) /\ Writes(q) => "alone" \notin {ModeOf(process[p].want), ModeOf(process[q].want)}

NothingLost == ~isLost

Safe == OneHolder /\ WritersAgree /\ NothingLost

(* Where a run ends. *)
CONSTANT States
Enough == TLCGet("distinct") < States \/ TLCSet("exit", TRUE)
=============================================================================

---------------------------- MODULE LeaseBreaks ----------------------------
(* Finds each break of the protocol, in a situation in which it shows. One run follows all of them. *)
EXTENDS Lease

ASSUME Processes = {"a", "b"} /\ First = "a"
Found == 1
ASSUME TLCSet(Found, {})

IsElsewhere ==
    break \in {"deadline from answer", "no margin", "clock stops", "no sighting", "same epoch", "renews released"}
Wanted ==
    CASE break \in {"renews released", "no lock", "leave again"} -> "window"
      [] break = "shared where replaced" -> "other"
      [] OTHER -> "flow"

Taken(p) == [NoRow EXCEPT !.holder = p, !.expires = Ttl, !.isReleased = FALSE]
Holding(l) == [Dead EXCEPT !.is = "up", !.want = l, !.holds = TRUE, !.isNewest = TRUE]

(* a holds the lease of the flow. b wants it, too, or holds another one of the table. *)
Shows ==
    /\ Situations
    /\ store = IF IsElsewhere \/ break = "no lock" THEN "refuses" ELSE "disk"
    /\ machine = [p \in Processes |-> IF p = "b" /\ IsElsewhere THEN "there" ELSE "here"]
    /\ LET isAsleep == break = "renews released"
           writes == isAsleep \/ break = "leave again"
           flow == [Taken("a") EXCEPT !.mode = IF writes THEN ModeOf("flow") ELSE "none"]
           a == [Holding("flow") EXCEPT !.writes = writes]
           b == IF Wanted = "flow" THEN [Dead EXCEPT !.is = "up", !.want = "flow"] ELSE Holding(Wanted)
           outdated == [flow EXCEPT !.expires = 0, !.unchanged = Ttl]
           asleep == [a EXCEPT !.is = "paused", !.age = LimitOf + 1]
       IN /\ row = [l \in Leases |-> IF l = "flow" THEN IF isAsleep THEN outdated ELSE flow
                                     ELSE IF l = Wanted THEN Taken("b") ELSE NoRow]
          /\ process = [p \in Processes |-> IF p = "b" THEN b ELSE IF isAsleep THEN asleep ELSE a]

(* The actions that a break needs. *)
Steps ==
    \/ Tick
    \/ break \in {"no sighting", "no kill"} /\ SetForward
    \/ \E p \in Processes :
          \/ Acquire(p) \/ Renew(p) \/ Execute(p) \/ Receive(p) \/ Resume(p)
          \/ break \in {"deadline from answer", "clock stops", "same epoch"} /\ Pause(p)
          \/ break = "no compare" /\ GiveBack(p)
          \/ break = "leave again" /\ Leave(p)
          \/ Wanted # "flow" /\ Enter(p)
          \/ break = "shared where replaced" /\ (Commit(p) \/ Land(p))

(* A break is followed until it is found. It takes two processes that live. *)
Follows ==
    /\ break \notin TLCGet(Found)
    /\ Safe \/ (PrintT(<<"found", break>>) /\ TLCSet(Found, TLCGet(Found) \cup {break}) /\ FALSE)
    /\ \A p \in Processes : ~Is(p, "dead")
=============================================================================

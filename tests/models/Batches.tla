---- MODULE Batches ----
(* Batches without a query id, which use the lanes of a stream one after the other (W10). A batch looks at a lane, claims
   the slot after the entry that finishes it, writes, and finishes it with its commit. It may freeze at any step, its put
   may arrive late or never, and anybody may fence its lane. *)
EXTENDS Naturals, FiniteSets
CONSTANTS B, L, N, F,      \* batches; lanes; slots of a lane; fences
          Off              \* the rules that a mutant switches off
VARIABLES slot,            \* what is in each slot of each lane
          flying,          \* commits under way
          fences,          \* fences so far
          pc, lane, at,    \* batch: step, its lane, the slot of its claim
          acked, given     \* batches that were acknowledged; whose caller was told that nothing was written
vars == <<slot, flying, fences, pc, lane, at, acked, given>>

On(rule) == rule \notin Off
Free == [b |-> 0, kind |-> "free", fin |-> TRUE]
Present(l, s) == slot[l][s] # Free
Head(l) == CHOOSE h \in 0..N : (\A i \in 1..h : Present(l, i)) /\ (h = N \/ ~Present(l, h + 1))
\* Whether no writer is in a lane.
Left(l) == IF Head(l) = 0 THEN TRUE ELSE slot[l][Head(l)].fin
Put(l, s, e) == slot' = [slot EXCEPT ![l][s] = e]
Go(b, step) == pc' = [pc EXCEPT ![b] = step]

Init == /\ slot = [l \in 1..L |-> [s \in 1..N |-> Free]] /\ flying = {} /\ fences = 0
        /\ pc = [b \in 1..B |-> "look"] /\ lane = [b \in 1..B |-> 1] /\ at = [b \in 1..B |-> 0]
        /\ acked = {} /\ given = {}

Look(b) == /\ pc[b] = "look"
           /\ \E l \in 1..L : /\ Head(l) + 2 <= N /\ (On("only lanes that are finished are taken") => Left(l))
                              /\ lane' = [lane EXCEPT ![b] = l] /\ at' = [at EXCEPT ![b] = Head(l) + 1]
           /\ Go(b, "claim") /\ UNCHANGED <<slot, flying, fences, acked, given>>
Claim(b) == LET l == lane[b] IN
    /\ pc[b] = "claim"
    /\ IF ~Present(l, at[b])
       THEN Put(l, at[b], [b |-> b, kind |-> "claim", fin |-> FALSE]) /\ Go(b, "write") /\ UNCHANGED <<lane, at>>
       ELSE IF On("a loser leaves the lane to the winner")
            THEN Go(b, "look") /\ UNCHANGED <<slot, lane, at>>
            \* Mutant: as W1 does, it claims after the winner.
            ELSE /\ Head(l) + 2 <= N /\ at' = [at EXCEPT ![b] = Head(l) + 1]
                 /\ Put(l, Head(l) + 1, [b |-> b, kind |-> "claim", fin |-> FALSE]) /\ Go(b, "write") /\ UNCHANGED lane
    /\ UNCHANGED <<flying, fences, acked, given>>
\* Its put is sent; the store takes it whenever it likes, or never.
Write(b) == /\ pc[b] = "write" /\ Go(b, "wait")
            /\ flying' = flying \cup {[b |-> b, l |-> lane[b], s |-> at[b] + 1]}
            /\ UNCHANGED <<slot, fences, lane, at, acked, given>>
Arrive(put) == /\ \E again \in BOOLEAN : flying' = IF again THEN flying ELSE flying \ {put}
               /\ IF Present(put.l, put.s) /\ On("slots are written once") THEN UNCHANGED slot
                  ELSE Put(put.l, put.s, [b |-> put.b, kind |-> "data", fin |-> TRUE])
               /\ UNCHANGED <<fences, pc, lane, at, acked, given>>
\* It reads back: its commit, or that of another one, who has fenced it.
Resolve(b) == LET there == slot[lane[b]][at[b] + 1] IN
    /\ pc[b] = "wait" /\ there # Free
    /\ IF there.b = b THEN Go(b, "done") /\ acked' = acked \cup {b} /\ UNCHANGED given
                      ELSE Go(b, "fenced") /\ given' = given \cup {b} /\ UNCHANGED acked
    /\ UNCHANGED <<slot, flying, fences, lane, at>>
\* It ends without a commit, or in doubt: a claim that finishes the lane, in the slot of the commit.
Leave(b) == /\ pc[b] \in {"write", "wait"} /\ ~Present(lane[b], at[b] + 1)
            /\ IF On("whoever leaves takes the slot of the commit")
               THEN Put(lane[b], at[b] + 1, [b |-> 0, kind |-> "claim", fin |-> TRUE])
               ELSE UNCHANGED slot
            /\ Go(b, "left") /\ given' = given \cup {b} /\ UNCHANGED <<flying, fences, lane, at, acked>>
\* An operator, a clean or a fencing barrier. The lane of a batch is finished by it, and a finished one stays so.
Fence(l) == /\ fences < F /\ Head(l) > 0 /\ Head(l) + 1 <= N /\ fences' = fences + 1
            /\ Put(l, Head(l) + 1, [b |-> 0, kind |-> "fence", fin |-> On("a fence finishes")])
            /\ UNCHANGED <<flying, pc, lane, at, acked, given>>

Next == \/ \E b \in 1..B : Look(b) \/ Claim(b) \/ Write(b) \/ Resolve(b) \/ Leave(b)
        \/ \E put \in flying : Arrive(put)
        \/ \E l \in 1..L : Fence(l)
Spec == Init /\ [][Next]_vars

Commits(b) == {<<l, s>> \in (1..L) \X (1..N) : slot[l][s].kind = "data" /\ slot[l][s].b = b}
LaneContiguous == \A l \in 1..L, s \in 1..N : Present(l, s) => s <= Head(l)                                        \* S2
AckedDurable == \A b \in acked : Cardinality(Commits(b)) = 1                                                       \* S4
NoPhantom == \A b \in given : Commits(b) = {}                                                                      \* S5
Once == \A b \in 1..B : Cardinality(Commits(b)) <= 1                                                               \* S6
\* A commit follows the claim of its batch, so nobody else is between the two.
Alone == \A l \in 1..L, s \in 2..N : slot[l][s].kind = "data" => slot[l][s - 1].b = slot[l][s].b
BatchesApart == \A l \in 1..L, s \in 2..N : slot[l][s].kind = "claim" /\ slot[l][s].b > 0 => slot[l][s - 1].fin    \* L5
\* A lane is lost only to a batch that may still be in it.
NoLaneLost == \A l \in 1..L : ~Left(l) => \E b \in 1..B : lane[b] = l /\ slot[l][Head(l)].b = b
\* A trap: a lane is used by a batch, fenced under another one, and used by a third.
Reached == ~(\E l \in 1..L : \E i, j, k \in 1..N : i < j /\ j < k /\ slot[l][i].kind = "data" /\ slot[l][j].kind = "fence"
             /\ slot[l][j - 1].kind = "claim" /\ slot[l][k].kind = "data")
====

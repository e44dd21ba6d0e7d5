---- MODULE Archive ----
(* One chunk of a lane, whose entries move from their slots into an archive. Writers may be frozen for as long as they like
   between reading the lane and their put, and after it; archivers and readers between any two calls of the store. A slot
   whose object was deleted is free again for the store: what is put there then is a ghost. *)
EXTENDS Naturals, FiniteSets
CONSTANTS W, N, A,          \* writers, each of one entry; slots of the chunk; archivers
          Off               \* the rules that a mutant switches off
VARIABLES slot,             \* which writer's object stands in each slot
          truth,            \* whose entry the slot is, for ever: who was the first
          there, arch,      \* whether the archive is there, and what it holds
          announced,        \* the table lane says that the chunk may be archived
          pc, nx, prev,     \* writer: step, its slot, the entry before it
          apc, copy,        \* archiver: step, what it has read
          rpc, k, got, must, early  \* reader: step, how far it is, what it has read, what was acknowledged when it began
vars == <<slot, truth, there, arch, announced, pc, nx, prev, apc, copy, rpc, k, got, must, early>>

On(rule) == rule \notin Off
Writers == 1..W
Slots == 1..N
Archivers == 1..A
Nothing == [s \in Slots |-> 0]
Max(S) == CHOOSE m \in S : \A n \in S : n <= m
Head == Max({0} \cup {s \in Slots : \A i \in 1..s : truth[i] # 0})
Acked == {nx[w] : w \in {v \in Writers : pc[v] = "acked"}}

Init == /\ slot = Nothing /\ truth = Nothing /\ there = FALSE /\ arch = Nothing /\ announced = FALSE
        /\ pc = [w \in Writers |-> "start"] /\ nx = [w \in Writers |-> 0] /\ prev = [w \in Writers |-> 0]
        /\ apc = [a \in Archivers |-> "start"] /\ copy = [a \in Archivers |-> Nothing]
        /\ rpc = "start" /\ k = 0 /\ got = Nothing /\ must = {} /\ early = FALSE

\* A writer knows the lane; what it puts names the entry before.
Start(w) == /\ pc[w] = "start" /\ Head < N
            /\ nx' = [nx EXCEPT ![w] = Head + 1] /\ prev' = [prev EXCEPT ![w] = IF Head = 0 THEN 0 ELSE truth[Head]]
            /\ pc' = [pc EXCEPT ![w] = "put"]
            /\ UNCHANGED <<slot, truth, there, arch, announced, apc, copy, rpc, k, got, must, early>>
Put(w) == /\ pc[w] = "put"
          /\ IF slot[nx[w]] = 0
             THEN /\ slot' = [slot EXCEPT ![nx[w]] = w]
                  /\ truth' = [truth EXCEPT ![nx[w]] = IF @ = 0 THEN w ELSE @]
                  /\ pc' = [pc EXCEPT ![w] = IF On("wins are asked for") THEN "ask" ELSE "acked"]
             ELSE pc' = [pc EXCEPT ![w] = "lost"] /\ UNCHANGED <<slot, truth>>
          /\ UNCHANGED <<there, arch, announced, nx, prev, apc, copy, rpc, k, got, must, early>>
Ask(w) == /\ pc[w] = "ask"
          /\ pc' = [pc EXCEPT ![w] = IF there /\ arch[nx[w]] # w THEN "lost" ELSE "acked"]
          /\ UNCHANGED <<slot, truth, there, arch, announced, nx, prev, apc, copy, rpc, k, got, must, early>>

\* C5: read all of the chunk, say so in the table lane, create the archive, delete the slots one by one.
Copy(a) == /\ apc[a] = "start"
           /\ (\A s \in Slots : slot[s] # 0) \/ ~On("only whole chunks are archived")
           /\ copy' = [copy EXCEPT ![a] = slot] /\ apc' = [apc EXCEPT ![a] = "announce"]
           /\ UNCHANGED <<slot, truth, there, arch, announced, pc, nx, prev, rpc, k, got, must, early>>
Announce(a) == /\ apc[a] = "announce" /\ announced' = TRUE /\ apc' = [apc EXCEPT ![a] = "create"]
               /\ UNCHANGED <<slot, truth, there, arch, pc, nx, prev, copy, rpc, k, got, must, early>>
Create(a) == /\ apc[a] = "create" \/ (apc[a] = "announce" /\ ~On("archives are announced first"))
             /\ there' = TRUE
             /\ arch' = IF there /\ On("archives are written once") THEN arch ELSE copy[a]
             /\ apc' = [apc EXCEPT ![a] = "delete"]
             /\ UNCHANGED <<slot, truth, announced, pc, nx, prev, copy, rpc, k, got, must, early>>
Delete(a) == /\ apc[a] = "delete" \/ (apc[a] = "create" /\ ~On("slots are deleted after the archive is there"))
             /\ \E s \in Slots : slot[s] # 0 /\ slot' = [slot EXCEPT ![s] = 0]
             /\ UNCHANGED <<truth, there, arch, announced, pc, nx, prev, apc, copy, rpc, k, got, must, early>>

\* A reader goes on from slot to slot as long as each entry follows the one before, and asks for the archive then.
Begin == /\ rpc = "start" /\ must' = Acked /\ early' = there /\ rpc' = "read"
         /\ UNCHANGED <<slot, truth, there, arch, announced, pc, nx, prev, apc, copy, k, got>>
Follows(v) == k = 0 \/ prev[v] = got[k]
Read == /\ rpc = "read"
        /\ IF k < N /\ slot[k + 1] # 0 /\ Follows(slot[k + 1])
           THEN k' = k + 1 /\ got' = [got EXCEPT ![k + 1] = slot[k + 1]] /\ rpc' = "read"
           ELSE rpc' = (IF k < N /\ slot[k + 1] # 0 THEN "broken" ELSE "ended") /\ UNCHANGED <<k, got>>
        /\ UNCHANGED <<slot, truth, there, arch, announced, pc, nx, prev, apc, copy, must, early>>
Believe == (IF rpc = "broken" THEN rpc' = "corrupt" ELSE rpc' = "done") /\ UNCHANGED <<k, got>>
Look == /\ rpc \in {"ended", "broken"}
        /\ IF (IF On("readers ask afterwards") THEN there ELSE early)
           THEN got' = arch /\ k' = N /\ rpc' = "done"
           ELSE Believe
        /\ UNCHANGED <<slot, truth, there, arch, announced, pc, nx, prev, apc, copy, must, early>>
\* Who has many lanes to ask for reads the table lane instead.
LookAtTable == /\ rpc \in {"ended", "broken"} /\ ~announced /\ Believe
               /\ UNCHANGED <<slot, truth, there, arch, announced, pc, nx, prev, apc, copy, must, early>>

Next == \/ \E w \in Writers : Start(w) \/ Put(w) \/ Ask(w)
        \/ \E a \in Archivers : Copy(a) \/ Announce(a) \/ Create(a) \/ Delete(a)
        \/ Begin \/ Read \/ Look \/ LookAtTable
Spec == Init /\ [][Next]_vars

FloorSafe == \A s \in Slots : truth[s] # 0 => IF there THEN arch[s] = truth[s] ELSE slot[s] = truth[s]       \* S20
AckedDurable == \A w \in Writers : pc[w] = "acked" => truth[nx[w]] = w                                       \* S4
ReadRight == rpc = "done" => (\A s \in 1..k : got[s] = truth[s]) /\ must \subseteq 1..k                       \* S2, S4
NoFalseAlarm == rpc # "corrupt"
\* A trap: a ghost stands in a slot, its writer was told that it lost, and a reader has got the chunk from the archive.
Reached == ~(there /\ rpc = "done" /\ ~early /\ k = N /\ \E w \in Writers : pc[w] = "lost" /\ slot[nx[w]] = w)
====

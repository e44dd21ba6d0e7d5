---- MODULE LaneLog ----
(* One lane, several incarnations of its writer, of which none knows whether the others still live. A put may arrive late
   or twice, and its answer may be lost; nothing but put-if-absent and get is used. A query hands out batches 1, 2, ... and
   after a crash hands out again every batch that it has not noted as done. *)
EXTENDS Naturals, FiniteSets
CONSTANTS W, N, B,          \* incarnations; slots; batches of the query
          Off               \* the rules that a mutant switches off
VARIABLES slot,             \* what is in each slot
          flying,           \* puts under way
          noted,            \* the query's own record of what is done
          pc, ep, nx,       \* incarnation: step, epoch, next slot
          b, last,          \* the batch at hand; the last batch that it found in the lane
          answer,           \* what the store said to its last put
          acked, given      \* batches acknowledged; entries whose caller was told that they failed
vars == <<slot, flying, noted, pc, ep, nx, b, last, answer, acked, given>>

On(rule) == rule \notin Off
Writers == 1..W
Slots == 1..N
Free == [w |-> 0, ep |-> 0, b |-> 0]
Present(s) == slot[s] # Free
Head == CHOOSE h \in 0..N : (\A i \in 1..h : Present(i)) /\ (h = N \/ ~Present(h + 1))
LastEpoch == IF Head = 0 THEN 0 ELSE slot[Head].ep
Batches(h) == {slot[i].b : i \in 1..h}
Max(S) == CHOOSE m \in S : \A n \in S : n <= m

Init == /\ slot = [s \in Slots |-> Free] /\ flying = {} /\ noted = 0
        /\ pc = [w \in Writers |-> "start"] /\ ep = [w \in Writers |-> 0] /\ nx = [w \in Writers |-> 0]
        /\ b = [w \in Writers |-> 0] /\ last = [w \in Writers |-> 0] /\ answer = [w \in Writers |-> "none"]
        /\ acked = {} /\ given = {}

\* W1: read the contiguous prefix, claim the next slot with the next epoch; W2: only then replay the lane.
Read(w) == /\ pc[w] = "start" /\ Head < N
           /\ ep' = [ep EXCEPT ![w] = LastEpoch + 1] /\ nx' = [nx EXCEPT ![w] = Head + 1]
           /\ last' = [last EXCEPT ![w] = Max({0} \cup Batches(Head))]
           /\ pc' = [pc EXCEPT ![w] = IF On("claim") THEN "claim" ELSE "idle"]
           /\ b' = [b EXCEPT ![w] = noted]
           /\ UNCHANGED <<slot, flying, noted, answer, acked, given>>
Claim(w) == /\ pc[w] = "claim"
            /\ IF ~Present(nx[w])
               THEN /\ slot' = [slot EXCEPT ![nx[w]] = [w |-> w, ep |-> ep[w], b |-> 0]]
                    /\ nx' = [nx EXCEPT ![w] = @ + 1] /\ pc' = [pc EXCEPT ![w] = "idle"]
               ELSE pc' = [pc EXCEPT ![w] = "start"] /\ UNCHANGED <<slot, nx>>
            /\ UNCHANGED <<flying, noted, ep, b, last, answer, acked, given>>
\* W3: the next batch of the query. What the lane holds is not written again.
Next1(w) == b[w] + 1
Begin(w) == /\ pc[w] = "idle" /\ Next1(w) <= B /\ nx[w] <= N
            /\ b' = [b EXCEPT ![w] = Next1(w)]
            /\ IF Next1(w) <= last[w] /\ On("replayed batches are known")
               THEN pc' = [pc EXCEPT ![w] = "done"] /\ acked' = acked \cup {Next1(w)} /\ UNCHANGED flying
               ELSE /\ pc' = [pc EXCEPT ![w] = "wait"] /\ UNCHANGED acked
                    /\ flying' = flying \cup {[s |-> nx[w], e |-> [w |-> w, ep |-> ep[w], b |-> Next1(w)]]}
            /\ answer' = [answer EXCEPT ![w] = "none"]
            /\ UNCHANGED <<slot, noted, ep, nx, last, given>>
\* The store takes a put whenever it likes, once or twice; the answer may be lost.
Arrive(put) ==
    LET w == put.e.w IN
    /\ \E twice \in BOOLEAN : flying' = IF twice /\ ~Present(put.s) THEN flying ELSE flying \ {put}
    /\ slot' = IF Present(put.s) /\ On("slots are written once") THEN slot ELSE [slot EXCEPT ![put.s] = put.e]
    /\ \E lost \in BOOLEAN :
         answer' = IF lost \/ pc[w] # "wait" \/ b[w] # put.e.b \/ nx[w] # put.s THEN answer
                   ELSE [answer EXCEPT ![w] = IF Present(put.s) /\ On("slots are written once") THEN "exists" ELSE "ok"]
    /\ UNCHANGED <<noted, pc, ep, nx, b, last, acked, given>>
Won(w) == /\ acked' = acked \cup {b[w]} /\ nx' = [nx EXCEPT ![w] = @ + 1] /\ pc' = [pc EXCEPT ![w] = "done"]
          /\ last' = [last EXCEPT ![w] = b[w]]
Ok(w) == /\ pc[w] = "wait" /\ answer[w] = "ok" /\ Won(w) /\ UNCHANGED <<slot, flying, noted, ep, b, answer, given>>
\* Any other outcome: the name exists, a time-out, an error. Read back.
Doubt(w) == /\ pc[w] = "wait" /\ answer[w] # "ok" /\ pc' = [pc EXCEPT ![w] = "read back"]
            /\ UNCHANGED <<slot, flying, noted, ep, nx, b, last, answer, acked, given>>
Resolve(w) == LET own == [w |-> w, ep |-> ep[w], b |-> b[w]] IN
    /\ pc[w] = "read back"
    /\ IF Present(nx[w])
       THEN IF slot[nx[w]] = own THEN Won(w) /\ UNCHANGED <<flying, answer, b, given>>
            ELSE pc' = [pc EXCEPT ![w] = "fenced"] /\ UNCHANGED <<acked, nx, last, flying, answer, b, given>>
       ELSE IF On("absence is not failure")
            THEN /\ flying' = flying \cup {[s |-> nx[w], e |-> own]} /\ pc' = [pc EXCEPT ![w] = "wait"]
                 /\ answer' = [answer EXCEPT ![w] = "none"] /\ UNCHANGED <<acked, nx, last, b, given>>
            \* Mutant: tell the caller that it failed, and go on.
            ELSE /\ given' = given \cup {<<w, b[w]>>} /\ b' = [b EXCEPT ![w] = @ - 1] /\ pc' = [pc EXCEPT ![w] = "gave up"]
                 /\ UNCHANGED <<acked, nx, last, flying, answer>>
    /\ UNCHANGED <<slot, noted, ep>>
\* CommitUnknown: the store did not settle it in time. Nothing is removed; who replays the batch learns the truth.
GiveUp(w) == /\ pc[w] = "read back" /\ ~Present(nx[w]) /\ On("deadline") /\ pc' = [pc EXCEPT ![w] = "unknown"]
             /\ UNCHANGED <<slot, flying, noted, ep, nx, b, last, answer, acked, given>>
\* The query notes a batch as done after the writer said so; the process may die before.
Note(w) == /\ pc[w] = "done" /\ pc' = [pc EXCEPT ![w] = "idle"] /\ noted' = Max({noted, b[w]})
           /\ UNCHANGED <<slot, flying, ep, nx, b, last, answer, acked, given>>

Next == \/ \E w \in Writers : Read(w) \/ Claim(w) \/ Begin(w) \/ Ok(w) \/ Doubt(w) \/ Resolve(w) \/ GiveUp(w) \/ Note(w)
        \/ \E put \in flying : Arrive(put)
Spec == Init /\ [][Next]_vars
\* Liveness: the process runs, and its tries are bounded; the store need not ever take a put.
Running == Spec /\ \A w \in Writers : WF_vars(Doubt(w) \/ Resolve(w) \/ Ok(w)) /\ SF_vars(GiveUp(w))

Visible == {i \in 1..Head : slot[i].b > 0}
LaneContiguous == \A i \in Slots : Present(i) => i <= Head                                          \* S2
EpochMonotone == \A i, j \in 1..Head : i <= j => slot[i].ep <= slot[j].ep                           \* S3
AckedDurable == acked \subseteq Batches(Head)                                                       \* S4
NoPhantom == \A i \in Visible : <<slot[i].w, slot[i].b>> \notin given                               \* S5
BatchExactlyOnce == \A i, j \in Visible : slot[i].b = slot[j].b => i = j                            \* S6
NoGap == \A w \in Writers : pc[w] = "wait" => b[w] <= last[w] + 1
\* Once an incarnation has entered, no older one can commit.
Fencing == \A w \in Writers : pc[w] \in {"idle", "wait", "done"} => \A i \in Visible : i >= nx[w] => slot[i].ep >= ep[w]
PublishEnds == \A w \in Writers : (pc[w] = "wait") ~> (pc[w] \in {"done", "fenced", "unknown", "gave up"})      \* L2
\* A trap: two incarnations commit, the later one has something to replay.
Reached == ~(\E i, j \in Visible : slot[i].w # slot[j].w /\ \E w \in Writers : last[w] > noted)
====

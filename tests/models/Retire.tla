---- MODULE Retire ----
(* A lane is added, gets a commit, is closed and retired (C6), beside a lane that goes on, compactions that are as slow as
   they like, savepoints, cleaning, and restores. Whether a cut names the retired lane must make no difference.

   The lane has one commit, X; the other lane has the commits 1..C. There is one file group. `Unnamed` in a cut: it does
   not name the lane. What a slice really has is in `rows`; the protocol sees its cut alone. *)
EXTENDS Naturals, FiniteSets, Sequences
CONSTANTS C, MaxT,                          \* commits of the other lane; length of the table lane
          Plans, Saves, Cleans, Restores,   \* at most so many entries of each kind
          Off                               \* the rules that a mutant switches off
VARIABLES hist,    \* hist[T + 1] is state(T)
          head,    \* last entry of the other lane
          there,   \* whether the commit of the lane was published
          was,     \* whether the lane has an entry in the store
          busy,    \* compactions that may still publish
          left     \* how many entries of each kind may still come
vars == <<hist, head, there, was, busy, left>>

On(rule) == rule \notin Off
Unnamed == 2
X == C + 1
S(T) == hist[T + 1]
Top == Len(hist) - 1
Now == S(Top)
Min(m, n) == IF m < n THEN m ELSE n
Val(v) == IF v = Unnamed THEN 0 ELSE v
Commits(V) == {n \in 1..C : n <= V.m} \cup (IF Val(V.x) = 1 THEN {X} ELSE {})
\* V is a cut of state s: the lanes that s has.
CutOf(s, V) == /\ V.m <= head /\ (s.lane \in {"none", "retired"} <=> V.x = Unnamed)
               /\ (s.lane = "open" => Val(V.x) <= (IF there THEN 1 ELSE 0)) /\ (s.lane = "closed" => Val(V.x) = s.end)
\* R3, in the lanes that s has.
Reaches(s, V) == s.cut.m <= V.m /\ (V.x # Unnamed => Val(s.cut.x) <= Val(V.x))
Cuts == [m : 0..C, x : {0, 1, Unnamed}]
Snapshot(T, V) == T \in 0..Top /\ CutOf(S(T), V) /\ Reaches(S(T), V)
\* R5: the slice, and what the logs of the state's lanes have after it.
Rows(s, V) == s.rows \cup {n \in 1..C : s.cut.m < n /\ n <= V.m /\ n \notin s.void}
                     \cup (IF Val(V.x) = 1 /\ Val(s.cut.x) = 0 /\ X \notin s.void THEN {X} ELSE {})
\* What ought to be seen: all of a retired lane, and nothing that was undone.
Expect(s, V) == (Commits(V) \cup (IF s.lane = "retired" THEN {X} ELSE {})) \ s.undone
Readable(T, V) == T >= Now.keep \/ [T |-> T, V |-> V] \in Now.saves
HeadOf(s) == [m |-> head, x |-> IF s.lane \in {"none", "retired"} THEN Unnamed ELSE IF s.lane = "closed" THEN s.end
                                ELSE IF there THEN 1 ELSE 0]

Init == /\ hist = <<[lane |-> "none", end |-> 0, cut |-> [m |-> 0, x |-> Unnamed], rows |-> {}, void |-> {}, undone |-> {},
                     keep |-> 0, saves |-> {}, plans |-> {}, restored |-> 0]>>
        /\ head = 0 /\ there = FALSE /\ was = FALSE /\ busy = {}
        /\ left = [plan |-> Plans, save |-> Saves, clean |-> Cleans, restore |-> Restores]
Publish(s) == Top < MaxT /\ hist' = Append(hist, s)
Use(kind) == left[kind] > 0 /\ left' = [left EXCEPT ![kind] = @ - 1]

Commit == head < C /\ head' = head + 1 /\ UNCHANGED <<hist, there, was, busy, left>>
\* The first slot of the lane is read after the state that LANE_ADD follows.
Add == /\ Now.lane \in {"none", "retired"} /\ (On("names stay taken") => ~was)
       /\ Publish([Now EXCEPT !.lane = "open"]) /\ UNCHANGED <<head, there, was, busy, left>>
Write == /\ Now.lane = "open" /\ ~there /\ there' = TRUE /\ was' = TRUE /\ UNCHANGED <<hist, head, busy, left>>
\* INTENT, CLAIM and DONE at once: Barrier has them.
Close == /\ Now.lane = "open" /\ was' = TRUE /\ Publish([Now EXCEPT !.lane = "closed", !.end = IF there THEN 1 ELSE 0])
         /\ UNCHANGED <<head, there, busy, left>>

Plan == LET V == HeadOf(Now) IN
    /\ Reaches(Now, V) /\ Use("plan")
    /\ LET plan == [p |-> Top + 1, T |-> Top, V |-> V, rows |-> Rows(Now, V), parent |-> Now.cut]
       IN Publish([Now EXCEPT !.plans = @ \cup {plan}]) /\ busy' = busy \cup {plan}
    /\ UNCHANGED <<head, there, was>>
\* K3: the parent is compared as it is, with the names of retired lanes.
Base(plan) ==
    /\ busy' = busy \ {plan}
    /\ plan \in Now.plans /\ Now.cut = plan.parent /\ plan.V # plan.parent
    /\ Publish([Now EXCEPT !.plans = @ \ {plan}, !.cut = plan.V, !.rows = plan.rows])
    /\ UNCHANGED <<head, there, was, left>>
Abort(plan) == /\ plan \in Now.plans /\ Publish([Now EXCEPT !.plans = @ \ {plan}])
               /\ UNCHANGED <<head, there, was, busy, left>>
Save == /\ Use("save") /\ Publish([Now EXCEPT !.saves = @ \cup {[T |-> Top, V |-> HeadOf(Now)]}])
        /\ UNCHANGED <<head, there, was, busy>>
Clean == /\ Use("clean") /\ Publish([Now EXCEPT !.keep = Top]) /\ UNCHANGED <<head, there, was, busy>>
\* The snapshots that are asked whether they have the whole lane in their slices.
Held == (IF On("savepoints have the lane") THEN {save.T : save \in Now.saves} ELSE {})
        \cup {plan.T : plan \in Now.plans}      \* for the sake of their files, which Clean has
        \cup (IF On("retained states have the lane") THEN Now.keep..Top ELSE {Top})
Retire == /\ Now.lane = "closed" /\ there
          /\ \A T \in Held : S(T).lane = "closed" /\ Val(S(T).cut.x) = 1
          /\ X \notin Now.void      \* its source asks for what was rolled back
          /\ Publish([Now EXCEPT !.lane = "retired"])
          /\ UNCHANGED <<head, there, was, busy, left>>
\* Restore at once. A lane that is not there any more is not rolled back: nothing reads it.
Restore == \E T \in 0..Top, V \in Cuts :
    /\ Snapshot(T, V) /\ Readable(T, V) /\ Use("restore")
    /\ LET s == S(T)
           gone == ((1..head) \ Commits(V)) \cup (IF Now.lane \in {"open", "closed"} /\ Val(V.x) = 0 /\ there THEN {X} ELSE {})
       IN Publish([Now EXCEPT !.cut = s.cut, !.rows = s.rows, !.void = (s.void \cap Commits(V)) \cup gone, !.plans = {},
                   !.undone = ((1..head) \cup (IF there THEN {X} ELSE {})) \ Expect(s, V), !.restored = Top + 1])
    /\ UNCHANGED <<head, there, was, busy>>

Next == \/ Commit \/ Add \/ Write \/ Close \/ Plan \/ Save \/ Clean \/ Retire \/ Restore
        \/ \E plan \in busy : Base(plan) \/ Abort(plan)
Spec == Init /\ [][Next]_vars

Kept == {k \in (Now.keep..Top) \X Cuts : Snapshot(k[1], k[2])} \cup {<<save.T, save.V>> : save \in Now.saves}
Once == Val(HeadOf(Now).x) = 1 /\ Val(Now.cut.x) = 0 => X \notin Now.rows \/ X \in Now.void                      \* S11
HeadRight == Reaches(Now, HeadOf(Now)) => Rows(Now, HeadOf(Now)) = Expect(Now, HeadOf(Now))                     \* S8
KeptRight == \A k \in Kept : Rows(S(k[1]), k[2]) = Expect(S(k[1]), k[2])                                        \* S9
\* D1, D2: the changes since a kept snapshot are those of the commits that it lacks, in the lanes that there are now.
Since(V) == [m |-> V.m, x |-> IF Now.lane \in {"none", "retired"} THEN Unnamed ELSE V.x]
Changed(V) == (Commits(HeadOf(Now)) \ Commits(Since(V))) \ Now.undone
ChangesRight == \A k \in Kept : k[1] >= Now.keep /\ k[1] >= Now.restored =>
                    Changed(k[2]) = Expect(Now, HeadOf(Now)) \ Expect(S(k[1]), k[2])                            \* S21
RetiredWhole == Now.lane = "retired" => \A k \in Kept : X \in Rows(S(k[1]), k[2]) \cup S(k[1]).undone         \* S32
\* A trap: the lane is retired, and the slice was made after that.
Reached == ~(Now.lane = "retired" /\ Now.cut.x = Unnamed)
====

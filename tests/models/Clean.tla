---- MODULE Clean ----
(* Cleaning against everybody who still needs a file: compactions (an open PLAN is a pin), savepoints, restore, undo of
   one lane, and a reader with a pin. No clock, no lock; the table lane is what serialises them.

   A lane is a counter of commits here (LaneLog and Barrier say why that is right), a commit has one log file with rows
   of every file group, and a compaction makes one slice of one file group. A file that a cleaner has judged dead counts
   as deleted at once and for ever, so the invariants cover cleaners that are arbitrarily slow. *)
EXTENDS Naturals, FiniteSets, Sequences
CONSTANTS L, C, G,          \* lanes, commits per lane, file groups
          MaxT,             \* length of the table lane
          Plans, Aborts, Saves, Cleans, Restores, Undos,    \* at most so many entries of each kind
          Keeps,            \* what cleaners do with T_keep: "any" higher one, the "newest", "none": leave it as it is
          Reader,           \* is there a pinned reader?
          Off               \* the rules that a mutant switches off
VARIABLES head,             \* per lane its last entry
          hist,             \* hist[T + 1] is state(T), the fold of the first T entries of the table lane
          files,            \* per PLAN ever made what its base file is: plan slot, file group, cut, rows
          busy,             \* plans whose compactor, however slow, may still publish BASE
          left,             \* how many entries of each kind may still come
          dead,             \* files judged dead
          cpc, cT, cPins,   \* cleaner: step, slot of its CLEAN_INTENT, the pins it saw
          rpc, rT, rV       \* reader
vars == <<head, hist, files, busy, left, dead, cpc, cT, cPins, rpc, rT, rV>>

On(rule) == rule \notin Off
Lanes == 1..L
Groups == 1..G
None == [fence |-> {}]
Zero == [l \in Lanes |-> 0]
Endless == [l \in Lanes |-> C]
Cuts == [Lanes -> 0..C]
Leq(a, b) == \A l \in Lanes : a[l] <= b[l]
Within(V) == {e \in Lanes \X (1..C) : e[2] <= V[e[1]]}
Max(S) == CHOOSE m \in S : \A n \in S : n <= m
Min(S) == CHOOSE m \in S : \A n \in S : m <= n

S(T) == hist[T + 1]
Top == Len(hist) - 1
Now == S(Top)

\* Slice 0 is "never compacted".
File(p) == IF p = 0 THEN [p |-> 0, cut |-> Zero, rows |-> {}] ELSE CHOOSE f \in files : f.p = p
Cut(s, g) == File(s.slices[g]).cut
Covers(V, s) == \A g \in Groups : Leq(Cut(s, g), V)                                           \* R3
After(slices, void, V) == {e \in Within(V) \ void : \E g \in Groups : e[2] > File(slices[g]).cut[e[1]]}
Pointed(slices, logs) == {<<"base", slices[g], 0>> : g \in {h \in Groups : slices[h] # 0}} \cup
                         {<<"log", e[1], e[2]>> : e \in logs}
Need(s, V) == Pointed(s.slices, After(s.slices, s.void, V))
Rows(s, g, V) == File(s.slices[g]).rows \cup {e \in Within(V) \ s.void : e[2] > Cut(s, g)[e[1]]}  \* R5
\* What ought to be seen; `undone` is kept by the meaning of restore and undo, not by their intervals.
Expect(s, V) == Within(V) \ s.undone
\* R2: after a DONE, the entries of its fenced lanes carry its slot; who does not know it stops before them.
Heads(T) == [l \in Lanes |-> Min({head[l]} \cup {d.heads[l] : d \in {x \in Now.dones : x.at > T /\ l \in x.fence}})]
Readable(T, V) == T >= Now.keep \/ [T |-> T, V |-> V] \in Now.saves                            \* R4

\* What a restore INTENT promises: its slices and the logs on top of them, as they will be seen after DONE.
Target(s) == LET o == s.open IN
             Pointed(o.slices, {e \in After(o.slices, {}, Endless) :
                 IF e[1] \in o.fence THEN e[2] <= o.keep[e[1]] /\ e \notin o.void ELSE e \notin s.void})

Init == /\ head = Zero
        /\ hist = <<[slices |-> [g \in Groups |-> 0], void |-> {}, undone |-> {}, plans |-> {}, saves |-> {},
                     keep |-> 0, open |-> None, dones |-> {}]>>
        /\ files = {} /\ busy = {} /\ dead = {} /\ cpc = "idle" /\ cT = 0 /\ cPins = {} /\ rpc = "idle" /\ rT = 0 /\ rV = Zero
        /\ left = [plan |-> Plans, abort |-> Aborts, save |-> Saves, release |-> Saves, clean |-> Cleans,
                   restore |-> Restores, undo |-> Undos]
Cleaner == <<cpc, cT, cPins, dead>>
Read == <<rpc, rT, rV>>
Publish(s) == Top < MaxT /\ hist' = Append(hist, s)
Use(kind) == left[kind] > 0 /\ left' = [left EXCEPT ![kind] = @ - 1]

Commit(l) == /\ head[l] < C /\ head' = [head EXCEPT ![l] = @ + 1]
             /\ UNCHANGED <<hist, files, busy, left, Cleaner, Read>>

\* Compaction. K1: the snapshot may be as old as it likes when PLAN is published; build() compares it with what came since:
\* cleaning may have taken its files, and a restore its meaning (to a slice with the same cut as before, so that the
\* comparison of parents in K3 would not notice).
Plan == \E T \in 0..Top, g \in Groups :
    LET V == Heads(T)
        plan == [p |-> Top + 1, T |-> T, V |-> V, g |-> g]
    IN /\ On("plan checks keep") => T >= Now.keep
       /\ On("plan checks restore") => \A d \in Now.dones : T >= d.at
       /\ V # Cut(S(T), g) /\ Use("plan")
       /\ Publish([Now EXCEPT !.plans = @ \cup {plan}])
       /\ busy' = busy \cup {plan}
       /\ files' = files \cup {[p |-> plan.p, cut |-> V, rows |-> Rows(S(T), g, V)]}
       /\ UNCHANGED <<head, Cleaner, Read>>
\* K3: the plan is still open, and the slice's parent is still the newest.
Base(plan) ==
    /\ busy' = busy \ {plan}
    /\ On("base checks plan") => plan \in Now.plans
    /\ On("base checks parent") => Now.slices[plan.g] = S(plan.T).slices[plan.g]
    /\ Publish([Now EXCEPT !.plans = @ \ {plan}, !.slices[plan.g] = plan.p])
    /\ UNCHANGED <<head, files, left, Cleaner, Read>>
\* Anybody may declare a plan dead whose compactor is merely slow.
Abort(plan) == /\ plan \in Now.plans /\ Use("abort") /\ Publish([Now EXCEPT !.plans = @ \ {plan}])
               /\ UNCHANGED <<head, files, busy, Cleaner, Read>>

Savepoint == \E T \in 0..Top : \E V \in Cuts :
    /\ Leq(V, Heads(T)) /\ Covers(V, S(T))
    /\ On("savepoint checks keep") => Readable(T, V)
    /\ Use("save") /\ Publish([Now EXCEPT !.saves = @ \cup {[T |-> T, V |-> V]}])
    /\ UNCHANGED <<head, files, busy, Cleaner, Read>>
Release == \E save \in Now.saves :
    /\ Use("release") /\ Publish([Now EXCEPT !.saves = @ \ {save}])
    /\ UNCHANGED <<head, files, busy, Cleaner, Read>>

\* Restore and undo: from INTENT on every open compaction is dead.
Intent(open) == Publish([Now EXCEPT !.open = open, !.plans = IF On("intent kills plans") THEN {} ELSE @])
Restore == \E T \in 0..Top : \E V \in Cuts :
    /\ Now.open = None /\ Leq(V, Heads(T)) /\ Covers(V, S(T))
    /\ On("restore checks keep") => Readable(T, V)
    /\ Use("restore")
    /\ Intent([fence |-> Lanes, keep |-> V, void |-> S(T).void \cap Within(V), slices |-> S(T).slices,
               undone |-> Within(Endless) \ Expect(S(T), V)])
    /\ UNCHANGED <<head, files, busy, Cleaner, Read>>
\* Undo of lane 1 from entry k + 1 on, starting from the newest table state whose slices hold none of it.
Undo == \E k \in 0..head[1] :
    LET T == Max({t \in 0..Top : On("undo goes back") => \A g \in Groups : Cut(S(t), g)[1] <= k})
    IN /\ Now.open = None
       /\ On("undo checks keep") => T >= Now.keep
       /\ Use("undo")
       /\ Intent([fence |-> {1}, keep |-> [l \in Lanes |-> k], void |-> {e \in Now.void : e[1] = 1 /\ e[2] <= k},
                  slices |-> S(T).slices, undone |-> Now.undone \cup {<<1, n>> : n \in (k + 1)..C}])
       /\ UNCHANGED <<head, files, busy, Cleaner, Read>>
Done == LET o == Now.open IN
    /\ o # None
    /\ Publish([Now EXCEPT
           !.open = None, !.slices = o.slices, !.plans = IF On("intent kills plans") THEN {} ELSE @,
           !.void = {e \in Within(head) : IF e[1] \in o.fence THEN e \in o.void \/ e[2] > o.keep[e[1]] ELSE e \in @},
           !.undone = Within(head) \cap o.undone,
           !.dones = @ \cup {[at |-> Top + 1, fence |-> o.fence, heads |-> head]}])
    /\ UNCHANGED <<head, files, busy, left, Cleaner, Read>>

\* Clean: intent, then pins, then judge by the state of the intent, then delete.
CleanIntent == \E k \in (IF On("keep never falls") THEN Now.keep ELSE 0)..Top :
    /\ "any" \in Keeps \/ ("newest" \in Keeps /\ k = Top)
    /\ cpc = "idle" /\ Use("clean") /\ Publish([Now EXCEPT !.keep = k])
    /\ cT' = Top + 1 /\ cpc' = "pins" /\ UNCHANGED <<head, files, busy, cPins, dead, Read>>
\* Nothing more is given up: the newest state will do, for it is read before the pins as well.
CleanAgain == /\ "none" \in Keeps /\ cpc = "idle" /\ Use("clean") /\ cT' = Top /\ cpc' = "pins"
              /\ UNCHANGED <<head, hist, files, busy, cPins, dead, Read>>
CleanPins == /\ cpc = "pins" /\ cpc' = "judge"
             /\ cPins' = IF rpc \in {"pinned", "read"} /\ On("clean sees pins") THEN {[T |-> rT, V |-> rV]} ELSE {}
             /\ UNCHANGED <<head, hist, files, busy, left, cT, dead, Read>>
Kept(t) == LET s == S(t)
               held == cPins \cup (IF On("plans are pins") THEN s.plans ELSE {})
                             \cup (IF On("savepoints are kept") THEN s.saves ELSE {})
           IN UNION {Need(S(u), Endless) : u \in s.keep..t} \cup UNION {Need(S(h.T), h.V) : h \in held}
              \cup (IF s.open # None /\ On("intents are kept") THEN Target(s) ELSE {})
Listed(t) == {<<"log", e[1], e[2]>> : e \in Within(head)} \cup
             {<<"base", f.p, 0>> : f \in {x \in files : x.p <= t /\ \A plan \in S(t).plans : plan.p # x.p}}
CleanJudge == LET t == IF On("clean judges by its intent") THEN cT ELSE Top IN
              /\ cpc = "judge" /\ cpc' = "idle" /\ dead' = dead \cup (Listed(t) \ Kept(t))
              /\ cT' = 0 /\ cPins' = {}
              /\ UNCHANGED <<head, hist, files, busy, left, Read>>

\* A long reader: snapshot, pin, look at the table lane again.
ReadHead == /\ Reader /\ rpc = "idle" /\ rpc' = "got" /\ rT' = Top /\ rV' = Heads(Top)
            /\ UNCHANGED <<head, hist, files, busy, left, Cleaner>>
ReadSave == /\ Reader /\ rpc = "idle" /\ rpc' = "got" /\ \E save \in Now.saves : rT' = save.T /\ rV' = save.V
            /\ UNCHANGED <<head, hist, files, busy, left, Cleaner>>
Pin == rpc = "got" /\ rpc' = "pinned" /\ UNCHANGED <<head, hist, files, busy, left, Cleaner, rT, rV>>
Recheck == /\ rpc = "pinned" /\ rpc' = IF On("reader looks again") /\ ~Readable(rT, rV) THEN "end" ELSE "read"
           /\ UNCHANGED <<head, hist, files, busy, left, Cleaner, rT, rV>>

Next == \/ \E l \in Lanes : Commit(l)
        \/ Plan \/ (\E plan \in busy : Base(plan)) \/ (\E plan \in Now.plans : Abort(plan))
        \/ Savepoint \/ Release \/ Restore \/ Undo \/ Done
        \/ CleanIntent \/ CleanAgain \/ CleanPins \/ CleanJudge
        \/ ReadHead \/ ReadSave \/ Pin \/ Recheck
Spec == Init /\ [][Next]_vars

\* S16 CleanSafe, by who is hurt; S8 and S12: the rows are those that ought to be seen.
Whole(s, V) == Need(s, V) \cap dead = {}
Right(s, V) == Covers(V, s) /\ \A g \in Groups : Rows(s, g, V) = Expect(s, V)
HeadReadable == Whole(Now, Heads(Top))
PastReadable == \A T \in Now.keep..Top : Whole(S(T), Heads(T))
SavepointReadable == \A save \in Now.saves : Whole(S(save.T), save.V)
PlanReadable == \A plan \in Now.plans : Whole(S(plan.T), plan.V)
PinReadable == rpc = "read" => Whole(S(rT), rV)
RestoreReadable == Now.open # None => Target(Now) \cap dead = {}
SnapshotAtomic == Right(Now, Heads(Top))
RolledBackNeverVisible == \A g \in Groups : Rows(Now, g, head) \cap Now.undone = {}                \* S18
CutChain == \A T \in 1..Top : (\A d \in Now.dones : d.at # T) => \A g \in Groups : Leq(Cut(S(T - 1), g), Cut(S(T), g))
\* A trap, to see that the model gets where it should: a slice made after a restore, and something cleaned.
Reached == ~(dead # {} /\ \E d \in Now.dones, g \in Groups : Now.slices[g] > d.at)
====

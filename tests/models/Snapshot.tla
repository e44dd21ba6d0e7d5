---- MODULE Snapshot ----
(* What a snapshot (T, V) shows, whatever compactions and folds of logs were published meanwhile: per file group the newest
   slice of state(T), the folds on top of it that end within V, and the log pieces after them. Schema changes raise the
   revision that entries carry. Of cleaning there is one thing here: which event files it must leave beside folds. *)
EXTENDS Naturals, FiniteSets, Sequences
CONSTANTS L, C, G,          \* lanes, commits per lane, file groups
          MaxT,             \* length of the table lane
          Bases, Folds, Schemas, Cleans,    \* at most so many entries of each kind
          Off               \* the rules that a mutant switches off
VARIABLES lane,             \* per lane the table_rev of each commit
          known,            \* per lane the revision its writer knows
          hist,             \* hist[T + 1] is state(T)
          files,            \* slices and folds: id (of its plan), file group, cut or end, rows
          busy,             \* compactions and folds under way
          left,
          keep, gone,       \* T_keep; per file group the events whose files were deleted
          rpc, rT, rV       \* a reader of the head
vars == <<lane, known, hist, files, busy, left, keep, gone, rpc, rT, rV>>

On(rule) == rule \notin Off
Lanes == 1..L
Groups == 1..G
Zero == [l \in Lanes |-> 0]
Leq(a, b) == \A l \in Lanes : a[l] <= b[l]
Max(S) == CHOOSE m \in S : \A n \in S : n <= m
Ends == [l \in Lanes |-> Len(lane[l])]
Cuts == {V \in [Lanes -> 0..C] : Leq(V, Ends)}
Between(a, b) == {e \in Lanes \X (1..C) : a[e[1]] < e[2] /\ e[2] <= b[e[1]]}
S(T) == hist[T + 1]
Top == Len(hist) - 1
Now == S(Top)
File(id) == IF id = 0 THEN [id |-> 0, to |-> Zero, rows |-> {}] ELSE CHOOSE f \in files : f.id = id
Cut(s, g) == File(s.slices[g]).to
End(s, g) == IF s.folds[g] = <<>> THEN Cut(s, g) ELSE File(s.folds[g][Len(s.folds[g])]).to
R3(s, V) == \A g \in Groups : Leq(Cut(s, g), V)
\* R2: the longest prefix of each lane, within V, that the schema of T explains.
Cap(T, V) == IF ~On("R2 prefix that T explains") THEN V ELSE
             [l \in Lanes |-> Max({n \in 0..V[l] : \A i \in 1..n : lane[l][i] <= S(T).rev})]
\* R5. Folds in order, as long as they end within V: they only save reading, the event files are still there.
Used(s, g, V) == IF On("folds end within V") THEN Max({n \in 0..Len(s.folds[g]) : n = 0 \/ Leq(File(s.folds[g][n]).to, V)})
                 ELSE Len(s.folds[g])
Parts(s, g, V) == LET n == Used(s, g, V)
                      end == IF n = 0 THEN Cut(s, g) ELSE File(s.folds[g][n]).to
                  IN <<File(s.slices[g]).rows, UNION {File(s.folds[g][i]).rows : i \in 1..n}, Between(end, V)>>
Rows(s, g, V) == LET p == Parts(s, g, V) IN p[1] \cup p[2] \cup p[3]

Init == /\ lane = [l \in Lanes |-> <<>>] /\ known = Zero
        /\ hist = <<[rev |-> 0, slices |-> [g \in Groups |-> 0], folds |-> [g \in Groups |-> <<>>]]>>
        /\ files = {} /\ busy = {} /\ rpc = "idle" /\ rT = 0 /\ rV = Zero
        /\ left = [base |-> Bases, fold |-> Folds, schema |-> Schemas, clean |-> Cleans]
        /\ keep = 0 /\ gone = [g \in Groups |-> {}]
Publish(s) == Top < MaxT /\ hist' = Append(hist, s)
Use(kind) == left[kind] > 0 /\ left' = [left EXCEPT ![kind] = @ - 1]
Reader == <<rpc, rT, rV>>
Cleaned == <<keep, gone>>

Commit(l) == /\ Len(lane[l]) < C /\ lane' = [lane EXCEPT ![l] = Append(@, known[l])]
             /\ UNCHANGED <<known, hist, files, busy, left, Cleaned, Reader>>
Probe(l) == /\ known[l] # Now.rev /\ known' = [known EXCEPT ![l] = Now.rev]
            /\ UNCHANGED <<lane, hist, files, busy, left, Cleaned, Reader>>
Schema == /\ Use("schema") /\ Publish([Now EXCEPT !.rev = Top + 1])
          /\ UNCHANGED <<lane, known, files, busy, Cleaned, Reader>>

\* K1, K2: a snapshot, and the work on one of its file groups. `parent` and `from` are what it stands on.
Start(kind) == \E g \in Groups :
    LET V == Cap(Top, Ends)
        from == IF kind = "base" THEN Cut(Now, g) ELSE End(Now, g)
        id == Cardinality(files) + 1
    IN /\ V # from /\ Use(kind)
       /\ busy' = busy \cup {[kind |-> kind, g |-> g, id |-> id, parent |-> Cut(Now, g), from |-> from]}
       /\ files' = files \cup {[id |-> id, to |-> V, rows |-> IF kind = "base" THEN Rows(Now, g, V) ELSE Between(from, V)]}
       /\ UNCHANGED <<lane, known, hist, Cleaned, Reader>>
\* K3, per file group: BASE drops the folds; FOLD goes on where the last fold ends, or else the newest slice (that is
\* enough, whichever slice it was planned on).
Base(work) ==
    /\ work.kind = "base" /\ busy' = busy \ {work}
    /\ On("base checks parent") => work.parent = Cut(Now, work.g)
    /\ Publish([Now EXCEPT !.slices[work.g] = work.id, !.folds[work.g] = IF On("base drops folds") THEN <<>> ELSE @])
    /\ UNCHANGED <<lane, known, files, left, Cleaned, Reader>>
Fold(work) ==
    /\ work.kind = "fold" /\ busy' = busy \ {work}
    /\ On("fold checks its chain") => work.from = End(Now, work.g)
    /\ Publish([Now EXCEPT !.folds[work.g] = Append(@, work.id)])
    /\ UNCHANGED <<lane, known, files, left, Cleaned, Reader>>

\* Clean up to the newest state (the rest is in module Clean). A fold is dropped by the next BASE, whose cut may be older,
\* and by every restore: so what it holds stays until a slice holds it.
Clean == /\ Use("clean") /\ keep' = Top
         /\ gone' = [g \in Groups |-> gone[g] \cup
                       Between(Zero, IF On("clean keeps what folds hold") THEN Cut(Now, g) ELSE End(Now, g))]
         /\ UNCHANGED <<lane, known, hist, files, busy, Reader>>

\* Reader of the head: R1 the table lane, strictly after it R2 every lane, R3 or again.
ReadTable(from, to) == /\ rpc = from /\ rpc' = to /\ rT' = Top
                       /\ UNCHANGED <<lane, known, hist, files, busy, left, Cleaned, rV>>
ReadLanes(from, to) == /\ rpc = from /\ rpc' = to /\ rV' = Ends
                       /\ UNCHANGED <<lane, known, hist, files, busy, left, Cleaned, rT>>
Read == IF On("R1 table before lanes") THEN ReadTable("idle", "lanes") \/ ReadLanes("lanes", "done")
        ELSE ReadLanes("idle", "table") \/ ReadTable("table", "done")
Next == \/ \E l \in Lanes : Commit(l) \/ Probe(l)
        \/ Schema \/ Clean \/ Start("base") \/ Start("fold")
        \/ \E work \in busy : Base(work) \/ Fold(work)
        \/ Read
Spec == Init /\ [][Next]_vars

\* S8, S11, S12, for every snapshot that R3 admits: head, as of any time by clocks that are wrong in any way, or an exact
\* cut. Per file group every event once: in the slice, or in a fold, or in the logs.
Once(s, g, V) == LET p == Parts(s, g, V) IN
                 /\ p[1] \cup p[2] \cup p[3] = Between(Zero, V)
                 /\ p[1] \cap p[2] = {} /\ p[1] \cap p[3] = {} /\ p[2] \cap p[3] = {}
SnapshotAtomic == \A T \in 0..Top, W \in Cuts : LET V == Cap(T, W) IN
    (R3(S(T), V) \/ ~On("R3 cuts within V")) => \A g \in Groups : Once(S(T), g, V)
\* No snapshot shows an entry whose columns the schema of its T does not know.
Explained == \A T \in 0..Top, W \in Cuts : LET V == Cap(T, W) IN
    R3(S(T), V) => \A l \in Lanes : \A n \in 1..V[l] : lane[l][n] <= S(T).rev
\* Who reads the table lane first never has to read again.
HeadAtOnce == rpc = "done" => R3(S(rT), Cap(rT, rV))
\* S16: reads after cleaning find their event files.
CleanSafe == \A T \in keep..Top, g \in Groups : Parts(S(T), g, Cap(T, Ends))[3] \cap gone[g] = {}
CutChain == \A T \in 1..Top, g \in Groups : Leq(Cut(S(T - 1), g), Cut(S(T), g))
\* A trap: a chain of two folds that reads use.
Reached == \A g \in Groups : Used(Now, g, Ends) < 2
====

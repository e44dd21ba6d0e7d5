---- MODULE Split ----
(* The number of buckets changes while writers who know another one go on. File groups are <<bits, bucket>>; one with fewer
   bits has the keys of several with more. Every commit has an event of every key, in ranges of the bits that its writer
   knew. Compactions write slices of the table's bits, folds the events of one file group as it is. *)
EXTENDS Naturals, FiniteSets, Sequences
CONSTANTS B,                \* the largest number of bits; keys are 0..2^B - 1
          C, MaxT,          \* commits of the one lane; length of the table lane
          Bases, Folds, Schemas,
          Off               \* the rules that a mutant switches off
VARIABLES log,              \* per commit its revision and its bits
          known,            \* what its writer knows: a revision and bits
          hist,             \* hist[T + 1] is state(T)
          busy,             \* compactions and folds under way
          left
vars == <<log, known, hist, busy, left>>

On(rule) == rule \notin Off
Keys == 0..(2^B - 1)
In(g) == {k \in Keys : k % (2^g[1]) = g[2]}
At(bits, k) == <<bits, k % (2^bits)>>
Max(N) == CHOOSE m \in N : \A n \in N : n <= m
Min(N) == CHOOSE m \in N : \A n \in N : m <= n
Overlap(g, h) == In(g) \cap In(h) # {}
All(S) == UNION {In(g) : g \in S}
S(T) == hist[T + 1]
Top == Len(hist) - 1
Now == S(Top)

\* G3: the file groups of a state are those with a slice or a fold; other keys are in those of the largest bits.
Homes(s) == {f.g : f \in s.slices \cup s.folds}
Finest(s) == IF On("other keys are in the finest") THEN Max({s.bits} \cup {g[1] : g \in Homes(s)}) ELSE s.bits
Home(s, k) == IF k \in All(Homes(s)) THEN CHOOSE g \in Homes(s) : k \in In(g) ELSE At(Finest(s), k)
Units(s) == Homes(s) \cup {At(Finest(s), k) : k \in Keys \ All(Homes(s))}
Slices(s, g) == {f \in s.slices : f.g = g}
Cut(s, g) == Max({0} \cup {f.to : f \in Slices(s, g)})
End(s, g) == Max({Cut(s, g)} \cup {f.to : f \in {f \in s.folds : f.g = g}})
\* The ranges of a commit that a file group reads, and the rows of them that count for it.
Ranges(s, g, c) == {r \in {At(log[c].bits, k) : k \in Keys} : Overlap(r, g)}
Rows(s, g, c) == IF On("ranges are filtered") THEN In(g) ELSE All(Ranges(s, g, c))
\* Readers skip logs up to where every key is in a slice, or in a fold.
Logs(s, g, V) == UNION {{<<k, c>> : k \in Rows(s, g, c)} : c \in (Max({End(s, g), s.covered, s.folded}) + 1)..V}
Parts(s, g, V) == <<UNION {f.rows : f \in Slices(s, g)}, UNION {f.rows : f \in {f \in s.folds : f.g = g}}, Logs(s, g, V)>>
Read(s, g, V) == LET p == Parts(s, g, V) IN p[1] \cup p[2] \cup p[3]
R3(s, V) == \A f \in s.slices \cup s.folds : f.to <= V
Cap(T, V) == Max({n \in 0..V : \A i \in 1..n : log[i].rev <= S(T).rev})

Init == /\ log = <<>> /\ known = [rev |-> 0, bits |-> 0] /\ busy = {}
        /\ hist = <<[rev |-> 0, bits |-> 0, slices |-> {}, folds |-> {}, covered |-> 0, folded |-> 0]>>
        /\ left = [base |-> Bases, fold |-> Folds, schema |-> Schemas]
Publish(s) == Top < MaxT /\ hist' = Append(hist, s)
Use(kind) == left[kind] > 0 /\ left' = [left EXCEPT ![kind] = @ - 1]

Commit == Len(log) < C /\ log' = Append(log, known) /\ UNCHANGED <<known, hist, busy, left>>
Learn == /\ known.rev # Now.rev /\ known' = [rev |-> Now.rev, bits |-> Now.bits]
         /\ UNCHANGED <<log, hist, busy, left>>
\* G1: any number of bits, any number of times.
Schema == \E bits \in 0..B \ {Now.bits} :
    /\ Use("schema") /\ Publish([Now EXCEPT !.rev = Top + 1, !.bits = bits]) /\ UNCHANGED <<log, known, busy>>

\* G2: a compaction takes a bucket of the table's bits, or a file group that has several of them, with all its parts.
StartBase == \E k \in Keys :
    LET s == Now
        V == Cap(Top, Len(log))
        target == At(s.bits, k)
        unit == Home(s, k)
        whole == IF unit[1] < s.bits THEN unit ELSE target
        made == IF On("all parts are in one entry") THEN {At(s.bits, j) : j \in In(whole)} ELSE {target}
        from == {g \in Units(s) : Overlap(g, whole)}
        used == IF On("parts without a slice are merged") THEN from ELSE {g \in from : Slices(s, g) # {}}
        rows == UNION {Read(s, g, V) : g \in used}
    IN /\ Use("base") /\ (\E g \in from : Cut(s, g) < V \/ g \notin made)
       /\ busy' = busy \cup {[kind |-> "base",
              made |-> {[g |-> g, to |-> V, rows |-> {r \in rows : r[1] \in In(g)}] : g \in made},
              replaced |-> {<<f.g, f.to>> : f \in {f \in s.slices : Overlap(f.g, whole)}}]}
       /\ UNCHANGED <<log, known, hist>>
Base(work) ==
    LET new == {f.g : f \in work.made}
        over(fs) == {f \in fs : \E g \in new : Overlap(f.g, g)}
    IN /\ work.kind = "base" /\ busy' = busy \ {work}
       /\ On("base checks what it replaces") => {<<f.g, f.to>> : f \in over(Now.slices)} = work.replaced
       /\ On("base ends folds as a whole") => \A f \in over(Now.folds) : In(f.g) \subseteq All(new)
       /\ LET slices == (Now.slices \ over(Now.slices)) \cup work.made
              reached == Min({Max({0} \cup {f.to : f \in {f \in slices : k \in In(f.g)}}) : k \in Keys})
          IN Publish([Now EXCEPT !.slices = slices, !.folds = @ \ over(@), !.covered = Max({@, reached}),
                                 !.folded = Min({@} \cup {f.to : f \in work.made})])
       /\ UNCHANGED <<log, known, left>>

StartFold == \E g \in Units(Now) :
    LET V == Cap(Top, Len(log))
    IN /\ \A f \in Now.folds : f.g # g
       /\ V > Cut(Now, g) /\ Use("fold")
       /\ busy' = busy \cup {[kind |-> "fold", from |-> Cut(Now, g),
                              made |-> {[g |-> g, to |-> V, rows |-> Logs(Now, g, V)]}]}
       /\ UNCHANGED <<log, known, hist>>
Fold(work) == \E f \in work.made :
    /\ work.kind = "fold" /\ busy' = busy \ {work}
    /\ End(Now, f.g) = work.from
    /\ On("fold checks other bits") => \A g \in Homes(Now) : g = f.g \/ ~Overlap(g, f.g)
    /\ LET s == [Now EXCEPT !.folds = @ \cup {f}]
       IN Publish([s EXCEPT !.folded = Max({@, Min({End(s, Home(s, k)) : k \in Keys})})])
    /\ UNCHANGED <<log, known, left>>

Next == Commit \/ Learn \/ Schema \/ StartBase \/ StartFold \/ \E work \in busy : Base(work) \/ Fold(work)
Spec == Init /\ [][Next]_vars

\* S15: a key has one file group.
SingleHome == \A T \in 0..Top : \A g, h \in Units(S(T)) : g = h \/ ~Overlap(g, h)
\* S8, S11, S12: every snapshot has every event of every key once: in a slice, or in a fold, or in the logs of its file group.
Once == \A T \in 0..Top, W \in 0..Len(log) : LET V == Cap(T, W) IN R3(S(T), V) =>
    LET s == S(T) IN
    /\ UNION {Read(s, g, V) : g \in Units(s)} = Keys \X (1..V)
    /\ \A g \in Units(s) : LET p == Parts(s, g, V) IN
         p[1] \cap p[2] = {} /\ p[1] \cap p[3] = {} /\ p[2] \cap p[3] = {}
    /\ \A g, h \in Units(s) : g = h \/ Read(s, g, V) \cap Read(s, h, V) = {}
\* S10: what a slice has of a key, its next slice has.
CutChain == \A T \in 1..Top, k \in Keys :
    LET cut(s) == Max({0} \cup {f.to : f \in {f \in s.slices : k \in In(f.g)}}) IN cut(S(T - 1)) <= cut(S(T))
\* A trap: merged again after a split, with a commit of a writer who knows nothing of either.
Reached == ~(Now.rev > 0 /\ Now.bits = 0 /\ log # <<>> /\ log[Len(log)].rev = 0 /\ End(Now, <<0, 0>>) = Len(log) - 1
             /\ \E T \in 0..Top : \E f \in S(T).slices : f.g[1] = B)
====

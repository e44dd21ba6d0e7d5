---- MODULE Moments ----
(* Is a cut the table at one moment? Writers read the table lane, then commit; a reader reads the table lane, then the
   lanes in rounds, whose requests are answered in any order. A commit knows what was visible when it began. *)
EXTENDS Naturals, FiniteSets
CONSTANTS L, C, MaxT, Looks,   \* lanes, commits per lane, length of the table lane, rounds in which lanes are read again
          Off                  \* the rules that a mutant switches off
VARIABLES lane,                \* per lane its commits: what was visible before each began, and what its writer had read
          tab,                 \* what was visible when each entry of the table lane was published
          busy,                \* per lane the commit under way
          rd                   \* the reader
vars == <<lane, tab, busy, rd>>

On(rule) == rule \notin Off
Lanes == 1..L
Max(S) == CHOOSE m \in S : \A n \in S : n <= m
Leq(a, b) == \A l \in Lanes : a[l] <= b[l]
Zero == [l \in Lanes |-> 0]
Ends == [l \in Lanes |-> Cardinality(DOMAIN lane[l])]
Top == Cardinality(DOMAIN tab)
Append(s, e) == [n \in 1..(Cardinality(DOMAIN s) + 1) |-> IF n \in DOMAIN s THEN s[n] ELSE e]
\* The last lane is added by the second entry of the table lane.
Added(l) == IF l = L THEN 2 ELSE 1
Known(T) == {l \in Lanes : Added(l) <= T}
None == [pc |-> "none", ends |-> Zero, table |-> 0, seen |-> 0]

Init == /\ lane = [l \in Lanes |-> <<>>] /\ tab = <<Zero>> /\ busy = [l \in Lanes |-> None]
        /\ rd = [pc |-> "cache", T |-> 0, round |-> 0, first |-> Zero, known |-> Zero, start |-> Zero, todo |-> {},
                 V |-> Zero, found |-> Zero, free |-> Zero, moment |-> FALSE]

\* W9: the writer reads the table lane again before each commit.
Done == rd.pc = "done"
Begin(l) == /\ ~Done /\ busy[l].pc = "none" /\ Ends[l] < C /\ l \in Known(Top)
            /\ \E seen \in Added(l)..Top :
                 /\ On("the table lane is read before a commit") => seen = Top
                 /\ \A n \in DOMAIN lane[l] : lane[l][n].seen <= seen
                 /\ busy' = [busy EXCEPT ![l] = [pc |-> "began", ends |-> Ends, table |-> Top, seen |-> seen]]
            /\ UNCHANGED <<lane, tab, rd>>
Commit(l) == /\ ~Done /\ busy[l].pc = "began"
             /\ lane' = [lane EXCEPT ![l] = Append(@, busy[l])] /\ busy' = [busy EXCEPT ![l] = None]
             /\ UNCHANGED <<tab, rd>>
Publish == /\ ~Done /\ Top < MaxT /\ tab' = Append(tab, Ends) /\ UNCHANGED <<lane, busy, rd>>

\* What the reader has in its cache, or a mark names: any prefix of each lane.
Cache == /\ rd.pc = "cache"
         /\ \E k \in [Lanes -> 0..C] : Leq(k, Ends) /\ rd' = [rd EXCEPT !.pc = "table", !.known = k, !.V = k]
         /\ UNCHANGED <<lane, tab, busy>>
Table == /\ rd.pc = "table"
         /\ rd' = [rd EXCEPT !.pc = "rounds", !.T = Top, !.round = 1, !.first = Ends, !.start = Ends, !.todo = Known(Top)]
         /\ UNCHANGED <<lane, tab, busy>>
\* The slots of a lane are requested together: the end that is found is one that the lane had since the round began.
Read(l) == /\ rd.pc = "rounds" /\ l \in rd.todo
           /\ \E n \in rd.start[l]..Ends[l] :
                /\ n >= rd.V[l]
                /\ LET belongs == {m \in (rd.V[l] + 1)..n : lane[l][m].seen <= rd.T \/ ~On("commits that knew more are left out")}
                   IN rd' = [rd EXCEPT !.todo = @ \ {l}, !.V[l] = n, !.free[l] = rd.round,
                             !.found[l] = IF belongs # {} THEN rd.round ELSE @]
           /\ UNCHANGED <<lane, tab, busy>>
Others(l) == Max({0} \cup {rd.found[m] : m \in Known(rd.T) \ {l}})
Early == {l \in Known(rd.T) : /\ Others(l) > 0
                              /\ \/ rd.free[l] < Others(l)
                                 \/ rd.free[l] = Others(l) /\ On("the same round is too early")}
Decide == /\ rd.pc = "rounds" /\ rd.todo = {}
          /\ IF Early # {} /\ rd.round <= Looks
             THEN rd' = [rd EXCEPT !.round = @ + 1, !.start = Ends, !.todo = Early]
             ELSE rd' = [rd EXCEPT !.pc = "done", !.T = IF On("the table lane is read first") THEN @ ELSE Top,
                         !.moment = Early = {} \/ ~On("the last look is looked at")]
          /\ UNCHANGED <<lane, tab, busy>>
Next == (\E l \in Lanes : Begin(l) \/ Commit(l) \/ Read(l)) \/ Publish \/ Cache \/ Table \/ Decide
Spec == Init /\ [][Next]_vars

\* R2: the longest prefix of each lane whose commits knew no more than `seen` entries of the table lane.
Prefix(seen) == [l \in Lanes |-> Max({0} \cup {n \in 1..rd.V[l] : \A m \in 1..n : lane[l][m].seen <= seen})]
Newest == IF On("commits that knew more are left out") THEN Prefix(rd.T) ELSE rd.V
\* The moment of an entry: of the newest one for who insists, of an older one for who insists on a time. For the latter the
\* lanes were read by the publisher of a MARK, which is this reader, too.
Insisted(e) == Prefix(IF On("who insists leaves out what knew the entry") THEN e - 1 ELSE e)
\* What was visible before one of its commits began, of lanes and of the table lane, is in the cut.
Closed(V, T) == \A l \in Lanes : \A n \in 1..V[l] : Leq(lane[l][n].ends, V) /\ lane[l][n].table <= T
OneMoment == Done /\ rd.moment => Closed(Newest, rd.T)                                               \* S31
InsistedMoment == Done => \A e \in 1..rd.T : Closed(Insisted(e), e)
\* S4: the newest cut has all that was visible when the table lane had been read, the others all that was when their entry was
\* published.
AckedDurable == Done => Leq(rd.first, Newest)
InsistedComplete == Done => \A e \in 1..rd.T : Leq(tab[e], Insisted(e))
\* A trap: a moment after a look that found one more commit.
Reached == ~(Done /\ rd.moment /\ rd.round > 1 /\ \E l \in Lanes : rd.found[l] > 1)
====

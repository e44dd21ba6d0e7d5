---- MODULE Times ----
(* What a time means. Commits and entries of the table lane carry labels: times by clocks that are wrong in any way, and
   puts take as long as they like; all that holds is that labels do not fall within a lane. A MARK says what was there. *)
EXTENDS Naturals, FiniteSets, Sequences
CONSTANTS L, C, N, MaxT,    \* lanes, commits per lane, labels, length of the table lane
          Off               \* the rules that a mutant switches off
VARIABLES lane,             \* per lane the label of each commit
          tab,              \* entries of the table lane; `lanes` and `began` of marks
          busy,             \* a mark under way: the prefix that it follows, `began`, what it has seen
          asked             \* one answer to a time that was called settled
vars == <<lane, tab, busy, asked>>

On(rule) == rule \notin Off
Lanes == 1..L
Labels == 1..N
Zero == [l \in Lanes |-> 0]
Leq(a, b) == \A l \in Lanes : a[l] <= b[l]
Max(S) == CHOOSE m \in S : \A n \in S : n <= m
Min(S) == CHOOSE m \in S : \A n \in S : m <= n
Ends == [l \in Lanes |-> Len(lane[l])]
Last(s) == IF s = <<>> THEN 1 ELSE s[Len(s)]
Top == Len(tab)
LastAt == IF Top = 0 THEN 1 ELSE tab[Top].at
None == [head |-> 0, began |-> 0, lanes |-> Zero, pc |-> "none"]

\* T3: the prefix, what it has seen, the first mark after it.
Prefix(X) == Max({0} \cup {n \in 1..Top : tab[n].at <= X})
Seen(p) == [l \in Lanes |-> Max({0} \cup {tab[n].lanes[l] : n \in 1..p})]
After(X) == {n \in (Prefix(X) + 1)..Top : tab[n].mark /\ tab[n].began > X}
Settled(X) == After(X) # {} \/ ~On("a mark settles")
Higher(a, b) == [l \in Lanes |-> IF a[l] > b[l] THEN a[l] ELSE b[l]]
Answer(X) ==
    LET p == Prefix(X)
        low == IF On("what a mark has seen is in") THEN Seen(p) ELSE Zero
        high == IF After(X) # {} /\ On("what a mark has not seen is out") THEN Higher(low, tab[Min(After(X))].lanes) ELSE Ends
    IN [x |-> X, p |-> p,
        cut |-> [l \in Lanes |-> Max({low[l]} \cup {n \in (low[l] + 1)..high[l] : lane[l][n] <= X})]]

Init == /\ lane = [l \in Lanes |-> <<>>] /\ tab = <<>> /\ busy = None /\ asked = <<>>
Commit(l) == /\ Len(lane[l]) < C
             /\ \E t \in Labels : t >= Last(lane[l]) /\ lane' = [lane EXCEPT ![l] = Append(@, t)]
             /\ UNCHANGED <<tab, busy, asked>>
\* Any other entry of the table lane.
Other == /\ Top < MaxT
         /\ \E t \in Labels : t >= LastAt /\ tab' = Append(tab, [mark |-> FALSE, at |-> t, began |-> 0, lanes |-> Zero])
         /\ UNCHANGED <<lane, busy, asked>>
\* T1: the state, then the time, then the lanes, then the entry; anew after a lost race.
Begin == /\ busy.pc = "none" /\ Top < MaxT
         /\ \E t \in Labels : t >= LastAt /\ busy' = [head |-> Top, began |-> t, lanes |-> Zero, pc |-> "began"]
         /\ UNCHANGED <<lane, tab, asked>>
See == /\ busy.pc = "began" /\ busy' = [busy EXCEPT !.lanes = Ends, !.pc = "seen"]
       /\ UNCHANGED <<lane, tab, asked>>
Publish == /\ busy.pc = "seen" /\ Top < MaxT
           /\ busy.head = Top
           /\ \E t \in Labels : t >= LastAt /\ t >= busy.began
                /\ tab' = Append(tab, [mark |-> TRUE, at |-> t, began |-> busy.began, lanes |-> busy.lanes])
           /\ busy' = None /\ UNCHANGED <<lane, asked>>
Lose == /\ busy.pc # "none" /\ busy.head # Top /\ busy' = None /\ UNCHANGED <<lane, tab, asked>>
Ask == /\ asked = <<>> /\ Top > 0
       /\ \E X \in Labels : Settled(X) /\ asked' = <<Answer(X)>>
       /\ UNCHANGED <<lane, tab, busy>>
Next == (\E l \in Lanes : Commit(l)) \/ Other \/ Begin \/ See \/ Publish \/ Lose \/ Ask
Spec == Init /\ [][Next]_vars

TimeStable == asked # <<>> => Answer(asked[1].x) = asked[1]                                         \* S24
\* What was recorded by a time is in what it shows: so an undo since a later time takes back nothing that was settled.
SeenIsIn == \A X \in Labels : \A n \in 1..Prefix(X) : Leq(tab[n].lanes, Answer(X).cut)
\* What came after the first mark that began later is not, whatever its label: an undo since then takes it back.
UnseenIsOut == \A X \in Labels : \A n \in After(X) : Leq(Answer(X).cut, tab[n].lanes)
LaterShowsNoLess == \A X, Y \in Labels : X <= Y => Leq(Answer(X).cut, Answer(Y).cut)
\* What a mark says was there when the entry before it was: marks do not fall back.
MarksAscend == \A m, n \in 1..Top : m < n /\ tab[m].mark /\ tab[n].mark => Leq(tab[m].lanes, tab[n].lanes)
\* A trap: a settled time leaves out a commit that says it is older.
Reached == ~(asked # <<>> /\ \E l \in Lanes : \E n \in 1..Len(lane[l]) : n > asked[1].cut[l] /\ lane[l][n] <= asked[1].x)
====

---- MODULE Together ----
(* Are the cuts of several tables one moment? They share no log. A reader takes the cut of each table, one after the other,
   and then looks whether all but the last are still as they were. The cut of each table alone is a moment (Moments.tla), so
   here a table is one lane. A commit knows what was visible in all tables when it began. *)
EXTENDS Naturals, FiniteSets
CONSTANTS N, C,                \* tables, of which the first refers to the others; commits per table
          Off                  \* the rules that a mutant switches off
VARIABLES log,                 \* per table its commits: what was visible in each table before each began
          busy,                \* per table what was visible when the commit under way began; {} if there is none
          rd                   \* the reader
vars == <<log, busy, rd>>

On(rule) == rule \notin Off
Tables == 1..N
Ends == [t \in Tables |-> Cardinality(DOMAIN log[t])]
Append(s, e) == [n \in 1..(Cardinality(DOMAIN s) + 1) |-> IF n \in DOMAIN s THEN s[n] ELSE e]

Init == /\ log = [t \in Tables |-> <<>>] /\ busy = [t \in Tables |-> {}]
        /\ rd = [pc |-> "take", step |-> 1, V |-> [t \in Tables |-> 0], same |-> TRUE]
Done == rd.pc = "done"
Begin(t) == /\ ~Done /\ busy[t] = {} /\ Ends[t] < C
            /\ busy' = [busy EXCEPT ![t] = {Ends}] /\ UNCHANGED <<log, rd>>
Commit(t) == /\ ~Done /\ \E ends \in busy[t] : log' = [log EXCEPT ![t] = Append(@, ends)]
             /\ busy' = [busy EXCEPT ![t] = {}] /\ UNCHANGED rd
Next1(pc, last) == IF rd.step < last THEN [rd EXCEPT !.step = @ + 1] ELSE [rd EXCEPT !.pc = pc, !.step = 1]
Take == LET t == IF On("the table is taken before those that it refers to") THEN rd.step ELSE N + 1 - rd.step
        IN /\ rd.pc = "take"
           /\ rd' = [Next1("look", N) EXCEPT !.V[t] = Ends[t]]
           /\ UNCHANGED <<log, busy>>
Looked == IF On("all but the last are looked at") THEN N - 1 ELSE 1
Look == /\ rd.pc = "look"
        /\ rd' = [Next1("done", Looked) EXCEPT
                     !.same = @ /\ (rd.V[rd.step] = Ends[rd.step] \/ ~On("a table that has changed is noticed"))]
        /\ UNCHANGED <<log, busy>>
Next == (\E t \in Tables : Begin(t) \/ Commit(t)) \/ Take \/ Look
Spec == Init /\ [][Next]_vars

\* What was visible in one of some tables before a commit of the cut in another began is in the cut.
Closed(from, to) == \A t \in from : \A n \in 1..rd.V[t] : \A u \in to : log[t][n][u] <= rd.V[u]
Follows == Done => Closed({1}, Tables)                                                               \* M11
OneMoment == Done /\ rd.same => Closed(Tables, Tables)                                               \* S31
\* A trap: one moment, with a commit of the last table that followed one of the first.
Reached == ~(Done /\ rd.same /\ \E n \in 1..rd.V[N] : log[N][n][1] > 0)
====

---- MODULE Barrier ----
(* The barrier of restore, undo and close: INTENT in the table lane, one claim per fenced lane, DONE. Writers run freely,
   restart when they are fenced, and finish an open INTENT when they enter; further helpers do the same. Whoever began it
   may stop at any step, and whoever helps may be slow at any step: no action is ever forced (but in the configurations
   that check liveness). *)
EXTENDS Naturals, FiniteSets, Sequences
CONSTANTS L, N,             \* lanes; slots of a lane
          Data,             \* slots that commits may use; the rest is left to claims
          Kinds,            \* what the operator may do: "restore" (of everything), "undo" and "close" (of lane 1)
          Late,             \* lanes that do not exist in the beginning: their writers add them
          Intents,          \* how many barriers, one after the other
          Helpers,          \* processes that only help, besides the writers
          Off               \* the rules that a mutant switches off
VARIABLES lane,             \* per lane its entries
          tab,              \* the table lane
          acked,            \* commits that were acknowledged, as (lane, slot)
          wpc, wnx, wrev,   \* writer of each lane: step, next slot, table_rev of what it commits
          apc, alist,       \* operator: step, lanes it knows
          hpc, hlane, hhead, hint   \* helper: step, lane at hand, its head as seen, INTENT it works for
vars == <<lane, tab, acked, wpc, wnx, wrev, apc, alist, hpc, hlane, hhead, hint>>

On(rule) == rule \notin Off
Lanes == 1..L
Procs == Lanes \cup (100 .. (99 + Helpers))     \* a writer helps under the number of its lane
Slots(s) == 1..Len(s)
Max(S) == CHOOSE m \in S : \A n \in S : n <= m
Min(S) == CHOOSE m \in S : \A n \in S : m <= n
Last(s) == s[Len(s)]
Epoch(l) == IF lane[l] = <<>> THEN 0 ELSE Last(lane[l]).ep
IsDone(i) == \E d \in Slots(tab) : tab[d].k = "done" /\ tab[d].i = i
Open == {i \in Slots(tab) : tab[i].k = "intent" /\ ~IsDone(i)}
Dones == {d \in Slots(tab) : tab[d].k = "done"}
Kind(d) == tab[tab[d].i].kind
Restores == {d \in Dones : Kind(d) # "close"}
Rev == Max({0} \cup Restores)
Known == (Lanes \ Late) \cup {tab[i].l : i \in {j \in Slots(tab) : tab[j].k = "add"}}
Closed(l) == \E d \in Dones \ Restores : l \in DOMAIN tab[d].heads
Claims(l, i) == {n \in Slots(lane[l]) : lane[l][n].k = "claim" /\ lane[l][n].barrier = i}

Init == /\ lane = [l \in Lanes |-> <<>>] /\ tab = <<>> /\ acked = {}
        /\ wpc = [l \in Lanes |-> IF l \in Late THEN "add" ELSE "init"]
        /\ wnx = [l \in Lanes |-> 0] /\ wrev = [l \in Lanes |-> 0] /\ apc = 0 /\ alist = {}
        /\ hpc = [h \in Procs |-> "idle"] /\ hlane = [h \in Procs |-> 0] /\ hhead = [h \in Procs |-> 0]
        /\ hint = [h \in Procs |-> 0]
Put(l, entry) == Len(lane[l]) < N /\ lane' = [lane EXCEPT ![l] = Append(@, entry)]
Claim(l, i) == [k |-> "claim", ep |-> Epoch(l) + 1, rev |-> 0, barrier |-> i]
Writer == <<wpc, wnx, wrev>>
Helper == <<hpc, hlane, hhead, hint>>
Operator == <<apc, alist>>

\* The writer of a lane. W1 claim, W2 only then load the table's state.
Add(l) == /\ wpc[l] = "add" /\ tab' = Append(tab, [k |-> "add", l |-> l]) /\ wpc' = [wpc EXCEPT ![l] = "init"]
          /\ UNCHANGED <<lane, acked, wnx, wrev, Operator, Helper>>
Read(l) == /\ wpc[l] = "init" /\ wpc' = [wpc EXCEPT ![l] = "claim"]
           /\ wnx' = [wnx EXCEPT ![l] = Len(lane[l]) + 1]
           /\ wrev' = [wrev EXCEPT ![l] = Rev]      \* stale by the time it counts; only the mutant uses it
           /\ UNCHANGED <<lane, tab, acked, Operator, Helper>>
Enter(l) == /\ wpc[l] = "claim"
            /\ IF wnx[l] = Len(lane[l]) + 1
               THEN /\ Put(l, Claim(l, 0)) /\ wnx' = [wnx EXCEPT ![l] = @ + 1]
                    /\ wpc' = [wpc EXCEPT ![l] = IF On("load after claim") THEN "load" ELSE "ready"]
               ELSE wpc' = [wpc EXCEPT ![l] = "init"] /\ UNCHANGED <<lane, wnx>>
            /\ UNCHANGED <<tab, acked, wrev, Operator, Helper>>
Load(l) == /\ wpc[l] = "load"
           /\ IF Open # {} /\ On("writers help")
              THEN /\ wpc' = [wpc EXCEPT ![l] = "help"] /\ UNCHANGED wrev
                   /\ hint' = [hint EXCEPT ![l] = Max(Open)] /\ hlane' = [hlane EXCEPT ![l] = 1]
                   /\ hpc' = [hpc EXCEPT ![l] = "look"] /\ UNCHANGED hhead
              ELSE /\ wpc' = [wpc EXCEPT ![l] = IF Closed(l) /\ On("closed is checked after the claim") THEN "refused" ELSE "ready"]
                   /\ wrev' = [wrev EXCEPT ![l] = Rev] /\ UNCHANGED Helper
           /\ UNCHANGED <<lane, tab, acked, wnx, Operator>>
Helped(l) == /\ wpc[l] = "help" /\ hpc[l] = "idle" /\ wpc' = [wpc EXCEPT ![l] = "load"]
             /\ UNCHANGED <<lane, tab, acked, wnx, wrev, Operator, Helper>>
\* W3: it looks at the table lane again now and then. An open INTENT does not stop it: the claim will.
Probe(l) == /\ wpc[l] = "ready" /\ wrev[l] # Rev /\ wrev' = [wrev EXCEPT ![l] = Rev]
            /\ UNCHANGED <<lane, tab, acked, wpc, wnx, Operator, Helper>>
Commit(l) == /\ wpc[l] = "ready" /\ wnx[l] <= Data
             /\ IF wnx[l] = Len(lane[l]) + 1
                THEN /\ Put(l, [k |-> "data", ep |-> Epoch(l), rev |-> wrev[l], barrier |-> 0])
                     /\ acked' = acked \cup {<<l, wnx[l]>>} /\ wnx' = [wnx EXCEPT ![l] = @ + 1] /\ UNCHANGED wpc
                ELSE wpc' = [wpc EXCEPT ![l] = "fenced"] /\ UNCHANGED <<lane, acked, wnx>>
             /\ UNCHANGED <<tab, wrev, Operator, Helper>>
Restart(l) == /\ wpc[l] = "fenced" /\ wpc' = [wpc EXCEPT ![l] = "init"]
              /\ UNCHANGED <<lane, tab, acked, wnx, wrev, Operator, Helper>>

\* The operator: reads the state, publishes INTENT with the lanes of the newest state (build() runs anew after a lost race).
Look == /\ apc < 2 * Intents /\ apc % 2 = 0 /\ Open = {} /\ apc' = apc + 1 /\ alist' = Known
        /\ UNCHANGED <<lane, tab, acked, Writer, Helper>>
Begin == /\ apc % 2 = 1 /\ Open = {} /\ apc' = apc + 1
         /\ \E kind \in Kinds :
              LET known == IF On("intent lists newest lanes") THEN Known ELSE alist
                  all == IF On("restore reaches closed lanes") THEN known ELSE {l \in known : ~Closed(l)}
                  one == IF On("undo fences its own lanes only") \/ kind = "close" THEN {1} ELSE all
              IN /\ kind = "close" => ~Closed(1)
                 /\ tab' = Append(tab, [k |-> "intent", kind |-> kind, fence |-> IF kind = "restore" THEN all ELSE one])
         /\ UNCHANGED <<lane, acked, alist, Writer, Helper>>
\* Mutant: fence first, say so afterwards.
Early == /\ ~On("intent before claims") /\ tab = <<>> /\ Claims(1, 1) = {}
         /\ Put(1, Claim(1, 1)) /\ UNCHANGED <<tab, acked, Writer, Operator, Helper>>

\* Helping: lane by lane, look for a claim of this barrier; if there is none, put one in the slot after what was looked at.
Notice(h) == /\ h \notin Lanes /\ hpc[h] = "idle" /\ Open # {} /\ hpc' = [hpc EXCEPT ![h] = "look"]
             /\ hint' = [hint EXCEPT ![h] = Max(Open)] /\ hlane' = [hlane EXCEPT ![h] = 1]
             /\ UNCHANGED <<lane, tab, acked, Writer, Operator, hhead>>
See(h) == LET l == hlane[h]  i == hint[h] IN
    /\ hpc[h] = "look" /\ l <= L
    /\ IF l \notin tab[i].fence \/ (Claims(l, i) # {} /\ On("helpers look for claims"))
       THEN hlane' = [hlane EXCEPT ![h] = l + 1] /\ UNCHANGED <<hpc, hhead>>
       ELSE hpc' = [hpc EXCEPT ![h] = "put"] /\ hhead' = [hhead EXCEPT ![h] = Len(lane[l])] /\ UNCHANGED hlane
    /\ UNCHANGED <<lane, tab, acked, Writer, Operator, hint>>
Stop(h) == LET l == hlane[h]  i == hint[h] IN
    /\ hpc[h] = "put" /\ hpc' = [hpc EXCEPT ![h] = "look"]
    /\ IF hhead[h] = Len(lane[l]) \/ ~On("helpers look again")
       THEN Put(l, Claim(l, i)) /\ hlane' = [hlane EXCEPT ![h] = l + 1]
       ELSE UNCHANGED <<lane, hlane>>
    /\ hhead' = [hhead EXCEPT ![h] = 0]
    /\ UNCHANGED <<tab, acked, Writer, Operator, hint>>
Heads(i) == [l \in tab[i].fence |-> IF On("first claim counts") THEN Min(Claims(l, i)) ELSE Max(Claims(l, i))]
Finish(h) == LET i == hint[h] IN
    /\ hpc[h] = "look" /\ hlane[h] > L
    /\ IF i \in Open \/ ~On("done once") THEN tab' = Append(tab, [k |-> "done", i |-> i, heads |-> Heads(i)]) ELSE UNCHANGED tab
    /\ hpc' = [hpc EXCEPT ![h] = "idle"] /\ hlane' = [hlane EXCEPT ![h] = 0] /\ hint' = [hint EXCEPT ![h] = 0]
    /\ UNCHANGED <<lane, acked, Writer, Operator, hhead>>

WriterStep(l) == Add(l) \/ Read(l) \/ Enter(l) \/ Load(l) \/ Helped(l) \/ Probe(l) \/ Commit(l) \/ Restart(l)
HelperStep(h) == Notice(h) \/ See(h) \/ Stop(h) \/ Finish(h)
Next == \/ \E l \in Lanes : WriterStep(l)
        \/ \E h \in Procs : HelperStep(h)
        \/ Look \/ Begin \/ Early
Spec == Init /\ [][Next]_vars
\* Liveness: the operator may stop at any step and so may all helpers but the named ones.
Entering == Spec /\ \A l \in Lanes : WF_vars(WriterStep(l)) /\ WF_vars(HelperStep(l))
Helping == Spec /\ WF_vars(HelperStep(100))

DataOf(l) == {n \in Slots(lane[l]) : lane[l][n].k = "data"}
\* Of a restored lane, exactly what was written knowing the restore lies after its head: nothing acknowledged since is
\* void, nothing from before lives (S4, S18), and who does not know the restore (T < DONE) stops at the head (R2).
Boundary == \A d \in Restores : \A l \in DOMAIN tab[d].heads : \A n \in DataOf(l) :
                (n > tab[d].heads[l]) = (lane[l][n].rev >= d)
\* A restore of everything reaches every lane that wrote without knowing it.
Complete == \A d \in Dones : Kind(d) = "restore" => \A l \in Lanes : \A n \in DataOf(l) :
                lane[l][n].rev < d => l \in DOMAIN tab[d].heads
\* Closing loses nothing that was acknowledged (S4).
ClosedComplete == \A d \in Dones : Kind(d) = "close" => \A e \in acked : e[1] = 1 => e[2] <= tab[d].heads[1]
\* The writers of lanes that an undo does not concern never notice.
OthersUntouched == "restore" \notin Kinds =>
    \A l \in Lanes \ {1} : wpc[l] # "fenced" /\ \A n \in Slots(lane[l]) : lane[l][n].barrier = 0
\* A barrier fences a lane once: whoever entered after that is not disturbed by a helper that comes late.
FencedOnce == \A l \in Lanes, i \in Slots(tab) : Cardinality(Claims(l, i)) <= 1
RevMonotone == \A l \in Lanes : \A m, n \in DataOf(l) : m < n => lane[l][m].rev <= lane[l][n].rev      \* S19
EpochMonotone == \A l \in Lanes : \A m, n \in Slots(lane[l]) : m < n => lane[l][m].ep <= lane[l][n].ep \* S3
DoneOnce == \A d, e \in Dones : tab[d].i = tab[e].i => d = e
\* A trap: a commit that knows a restore, in a lane that was restored.
Reached == ~(\E d \in Dones : \E l \in Lanes : \E n \in DataOf(l) : lane[l][n].rev >= d)
\* L1, L4. A lane that is full is an end of the model, not of the protocol.
Full == \E l \in Lanes : Len(lane[l]) = N
NonBlocking == \A l \in Lanes : (wpc[l] = "init") ~> (wpc[l] \in {"ready", "refused"} \/ Full)
Completed == (Open # {}) ~> (Open = {} \/ Full)
====

---- MODULE Orphans ----
(* Files that no entry names, told apart from files that an entry is about to name, by their names alone: a log file says
   (epoch, slot of the DATA entry it is for), a base file the slot of its PLAN. Nobody looks at a clock, and everybody may
   be arbitrarily slow: writers that were fenced long ago, compactors whose plan was aborted, puts still under way.
   One lane with its writers, and the table lane with its compactors; either half can be left out. *)
EXTENDS Naturals, FiniteSets, Sequences
CONSTANTS W, N,             \* incarnations of the writer; slots of the lane
          K, MaxT,          \* compactors; slots of the table lane
          Off               \* the rules that a mutant switches off
VARIABLES objects,          \* log files <<"log", epoch, slot, writer>>, base files <<"base", plan slot, compactor, 0>>
          lane, tab,
          wpc, wep, wnx, wfile,    \* writer: step, epoch, next slot, the file it wrote
          kpc, kplan, kfile,       \* compactor: step, slot of its plan, the file it wrote
          flying,           \* puts of BASE that were sent: <<compactor, slot>>
          cpc, cL, cT       \* cleaner: the prefixes that it judges by
vars == <<objects, lane, tab, wpc, wep, wnx, wfile, kpc, kplan, kfile, flying, cpc, cL, cT>>

On(rule) == rule \notin Off
Writers == 1..W
Compactors == 1..K
Epoch(n) == IF n = 0 THEN 0 ELSE lane[n].ep
Closed(p, t) == \E i \in 1..t : tab[i].k \in {"base", "abort"} /\ tab[i].p = p
Open(p, t) == p <= t /\ tab[p].k = "plan" /\ ~Closed(p, t)
None == <<"none", 0, 0, 0>>
Named == {lane[i].file : i \in 1..Len(lane)} \cup {tab[i].file : i \in 1..Len(tab)}

Init == /\ objects = {} /\ lane = <<>> /\ tab = <<>>
        /\ wpc = [w \in Writers |-> "start"] /\ wep = [w \in Writers |-> 0] /\ wnx = [w \in Writers |-> 0]
        /\ wfile = [w \in Writers |-> None]
        /\ kpc = [c \in Compactors |-> "start"] /\ kplan = [c \in Compactors |-> 0] /\ kfile = [c \in Compactors |-> None]
        /\ flying = {} /\ cpc = "idle" /\ cL = 0 /\ cT = 0
Lane == <<lane, wpc, wep, wnx, wfile>>
Table == <<tab, kpc, kplan, kfile, flying>>
Cleaner == <<cpc, cL, cT>>

\* Writers.
PutLane(entry) == Len(lane) < N /\ lane' = Append(lane, entry)
Read(w) == /\ wpc[w] = "start" /\ wpc' = [wpc EXCEPT ![w] = "claim"]
           /\ wep' = [wep EXCEPT ![w] = Epoch(Len(lane)) + 1] /\ wnx' = [wnx EXCEPT ![w] = Len(lane) + 1]
           /\ UNCHANGED <<objects, lane, wfile, Table, Cleaner>>
Claim(w) == /\ wpc[w] = "claim"
            /\ IF wnx[w] = Len(lane) + 1
               THEN /\ PutLane([k |-> "claim", ep |-> wep[w], file |-> None]) /\ wnx' = [wnx EXCEPT ![w] = @ + 1]
                    /\ wpc' = [wpc EXCEPT ![w] = IF wfile[w] = None THEN "ready" ELSE "wrote"]
               ELSE wpc' = [wpc EXCEPT ![w] = "start"] /\ UNCHANGED <<lane, wnx>>
            /\ UNCHANGED <<objects, wep, wfile, Table, Cleaner>>
Write(w) == LET file == <<"log", wep[w], wnx[w], w>> IN
            /\ wpc[w] = "ready" /\ wnx[w] <= N /\ wpc' = [wpc EXCEPT ![w] = "wrote"]
            /\ objects' = objects \cup {file} /\ wfile' = [wfile EXCEPT ![w] = file]
            /\ UNCHANGED <<lane, wep, wnx, Table, Cleaner>>
Commit(w) == /\ wpc[w] = "wrote"
             /\ IF wnx[w] = Len(lane) + 1
                THEN /\ PutLane([k |-> "data", ep |-> wep[w], file |-> wfile[w]]) /\ wnx' = [wnx EXCEPT ![w] = @ + 1]
                     /\ wpc' = [wpc EXCEPT ![w] = "ready"] /\ wfile' = [wfile EXCEPT ![w] = None]
                \* Fenced: the files are for a slot that is gone. The mutant claims anew and takes them along.
                ELSE /\ wpc' = [wpc EXCEPT ![w] = IF On("files are for one slot") THEN "fenced" ELSE "start"]
                     /\ UNCHANGED <<lane, wnx, wfile>>
             /\ UNCHANGED <<objects, wep, Table, Cleaner>>
Die(w) == /\ wpc[w] \in {"ready", "wrote"} /\ wpc' = [wpc EXCEPT ![w] = "dead"]
          /\ UNCHANGED <<objects, lane, wep, wnx, wfile, Table, Cleaner>>
\* The operator fences a lane whose writer is believed dead.
Fence == /\ On("operator fences") /\ lane # <<>> /\ lane[Len(lane)].k # "fence"     \* twice would be of no use
         /\ PutLane([k |-> "fence", ep |-> Epoch(Len(lane)) + 1, file |-> None])
         /\ UNCHANGED <<objects, wpc, wep, wnx, wfile, Table, Cleaner>>

\* Compactors. publish = build on the newest state, put in the next slot, build anew after a lost race. PLAN and ABORT are
\* one step here; BASE is a put that may arrive at any time after it was sent, and whose answer may be lost.
PutTable(entry) == Len(tab) < MaxT /\ tab' = Append(tab, entry)
BaseName(c, p) == <<"base", p, c, 0>>
PlanFirst(c) == /\ kpc[c] = "start" /\ On("plan before files")
                /\ PutTable([k |-> "plan", p |-> Len(tab) + 1, file |-> None])
                /\ kplan' = [kplan EXCEPT ![c] = Len(tab) + 1] /\ kpc' = [kpc EXCEPT ![c] = "planned"]
                /\ UNCHANGED <<objects, kfile, flying, Lane, Cleaner>>
WriteBase(c) == LET file == BaseName(c, kplan[c]) IN
                /\ kpc[c] = "planned" /\ kpc' = [kpc EXCEPT ![c] = "wrote"]
                /\ objects' = objects \cup {file} /\ kfile' = [kfile EXCEPT ![c] = file]
                /\ UNCHANGED <<tab, kplan, flying, Lane, Cleaner>>
\* Mutant: files first, under the slot that the plan hopes to get.
FilesFirst(c) == LET file == BaseName(c, Len(tab) + 1) IN
                 /\ kpc[c] = "start" /\ ~On("plan before files") /\ kpc' = [kpc EXCEPT ![c] = "early"]
                 /\ objects' = objects \cup {file} /\ kfile' = [kfile EXCEPT ![c] = file]
                 /\ UNCHANGED <<tab, kplan, flying, Lane, Cleaner>>
PlanLast(c) == /\ kpc[c] = "early" /\ PutTable([k |-> "plan", p |-> Len(tab) + 1, file |-> None])
               /\ kplan' = [kplan EXCEPT ![c] = Len(tab) + 1] /\ kpc' = [kpc EXCEPT ![c] = "wrote"]
               /\ UNCHANGED <<objects, kfile, flying, Lane, Cleaner>>
Send(c) == /\ kpc[c] = "wrote" /\ Len(tab) < MaxT
           /\ IF Open(kplan[c], Len(tab)) \/ ~On("base checks plan")
              THEN flying' = flying \cup {<<c, Len(tab) + 1>>} /\ kpc' = [kpc EXCEPT ![c] = "sent"]
              ELSE kpc' = [kpc EXCEPT ![c] = "refused"] /\ UNCHANGED flying
           /\ UNCHANGED <<objects, tab, kplan, kfile, Lane, Cleaner>>
Arrive(put) == LET c == put[1] IN
    /\ flying' = flying \ {put}
    /\ IF put[2] = Len(tab) + 1
       \* A BASE may be a part of what the plan makes, and leave it open.
       THEN /\ \E k \in {"base", "part"} : PutTable([k |-> k, p |-> kplan[c], file |-> kfile[c]])
            /\ kpc' = [kpc EXCEPT ![c] = IF @ = "sent" THEN "done" ELSE @]
       ELSE kpc' = [kpc EXCEPT ![c] = IF @ = "sent" THEN "wrote" ELSE @] /\ UNCHANGED tab
    /\ UNCHANGED <<objects, kplan, kfile, Lane, Cleaner>>
\* It fails after the put was sent, or after it arrived (the answer was lost, or what came after it went wrong).
Fail(c) == /\ kpc[c] \in {"wrote", "sent", "done"} /\ kpc' = [kpc EXCEPT ![c] = "failed"]
           /\ UNCHANGED <<objects, tab, kplan, kfile, flying, Lane, Cleaner>>
\* K4: what it wrote may go once its plan is closed by ABORT, for then no BASE can come any more, and if none has come
\* (of whose arrival it may not know). Whoever does not want to think of all that leaves it to the cleaner.
Tidy(c) == /\ kpc[c] = "failed" /\ kpc' = [kpc EXCEPT ![c] = "tidy"]
           /\ \/ ~On("abort before removal")
              \/ \E i \in 1..Len(tab) : tab[i].k = "abort" /\ tab[i].p = kplan[c]
           /\ On("removal looks for the file") => kfile[c] \notin Named
           /\ objects' = objects \ {kfile[c]} /\ UNCHANGED <<tab, kplan, kfile, flying, Lane, Cleaner>>
\* ABORT by its own compactor or, of a plan believed dead, by the operator.
Abort(p) == /\ On("operator aborts") /\ Open(p, Len(tab)) /\ PutTable([k |-> "abort", p |-> p, file |-> None])
            /\ UNCHANGED <<objects, kpc, kplan, kfile, flying, Lane, Cleaner>>

\* Clean: read the lanes, then list and delete. What it read may be old by then.
CleanRead == /\ cpc = "idle" /\ cpc' = "judge" /\ cL' = Len(lane) /\ cT' = Len(tab)
             /\ UNCHANGED <<objects, Lane, Table>>
Known == {lane[i].file : i \in 1..cL} \cup {tab[i].file : i \in 1..cT}
DeadLog(f) == IF ~On("free slots keep their files") THEN TRUE
              ELSE f[3] <= cL \/ f[2] < Epoch(cL)
DeadBase(f) == IF ~On("open plans keep their files") THEN f[2] <= cT
               ELSE f[2] <= cT /\ ~Open(f[2], cT)
CleanDelete == /\ cpc = "judge" /\ cpc' = "idle" /\ cL' = 0 /\ cT' = 0
               /\ objects' = {f \in objects : f \in Known \/ ~(IF f[1] = "log" THEN DeadLog(f) ELSE DeadBase(f))}
               /\ UNCHANGED <<Lane, Table>>

Next == \/ \E w \in Writers : Read(w) \/ Claim(w) \/ Write(w) \/ Commit(w) \/ Die(w)
        \/ (W > 0 /\ Fence)
        \/ \E c \in Compactors : PlanFirst(c) \/ WriteBase(c) \/ FilesFirst(c) \/ PlanLast(c) \/ Send(c) \/ Fail(c) \/ Tidy(c)
        \/ \E put \in flying : Arrive(put)
        \/ \E p \in 1..Len(tab) : Abort(p)
        \/ CleanRead \/ CleanDelete
Spec == Init /\ [][Next]_vars
\* Liveness: the operator fences and aborts what is dead, and cleans from time to time.
Operated == Spec /\ WF_vars(Fence) /\ WF_vars(CleanRead) /\ WF_vars(CleanDelete) /\ \A p \in 1..MaxT : WF_vars(Abort(p))

\* S7, S17: whatever is named is there, now and for ever.
NoDangling == Named \ {None} \subseteq objects
\* L3: a file that nobody will name is deleted. Whoever is only slow may write it again once, so: its maker is gone.
Garbage(f) == /\ f \in objects \ Named
              /\ IF f[1] = "log" THEN wpc[f[4]] \in {"dead", "fenced"} ELSE kpc[f[3]] \in {"refused", "failed"}
Collected == \A f \in ({"log"} \X (1..N) \X (1..N) \X Writers) \cup ({"base"} \X (1..MaxT) \X Compactors \X {0}) :
                 (f \in objects /\ Garbage(f)) ~> (f \notin objects \/ f \in Named)
====

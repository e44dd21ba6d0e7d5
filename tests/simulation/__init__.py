"""Deterministic simulation of a table under concurrency and faults, over the real `storage` code.

    plan.py       what one seed means: table, jobs, faults, limits
    scheduler.py  processes as threads of which one runs; time; what a crash is
    disk.py       the objects, and requests that take effect later
    faults.py     what goes wrong, drawn from the seed
    store.py      a process's view of the disk: every call is a point where others may run
    history.py    the log read again by separate code; invariants of every entry
    judge.py      what was acknowledged to callers, and what a reader must see
    actors.py     writers, compactors, readers
    followers.py  consumers of changes, and what their answers must be
    operators.py  savepoints, restore, undo, cleaning, schema changes
    needs.py      which files must be there
    run.py        one schedule from beginning to end
    mutant.py     what a mutant is: an implementation that breaks one rule, and must be found
    mutants.py    all of them: log_mutants.py, service_mutants.py

Replay: the same seed gives the same trace, byte for byte. Nothing here draws from anything but the seed.
"""

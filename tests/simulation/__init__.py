"""Deterministic simulation of a table under concurrency and faults, over the real `storage` code.

    plan.py       what one seed means: table, jobs, faults, limits
    scheduler.py  processes as threads of which one runs at a time; simulated time; crashes
    disk.py       the stored objects, and requests that take effect later
    faults.py     the faults, drawn from the seed
    store.py      a process's view of the disk: other processes may run at every call
    history.py    the log, read by independent code; invariants of every entry
    judge.py      acknowledged commits, and the expected results of reads
    actors.py     writers, compactors, readers
    followers.py  consumers of changes, and the expected changes
    operators.py  savepoints, restore, undo, cleaning, schema changes
    needs.py      the files that must exist
    published.py  the published Delta table, and its expected rows
    two_tables.py references to another table with actors of its own: their expected rows, and what must be kept
    run.py        runs one schedule
    mutant.py     mutants: implementations that break one rule, which the simulation must find
    mutants.py    all mutants; see also log_mutants.py, service_mutants.py, reference_mutants.py,
                  overlay_mutants.py, split_mutants.py, publish_mutants.py, batch_mutants.py

Replay: the same seed gives the same trace, byte for byte. The seed is the only source of randomness.
"""

"""The kinds of things that happen in simulated runs of a job."""

from __future__ import annotations

from enum import StrEnum


class JobKind(StrEnum):
    """The simulator counts each when it happens, not when it is merely possible."""

    WORKER_KILLED = "a worker was killed"
    LEASE_EXPIRED = "the master gave a worker up that went on as a zombie"
    DRIVER_LOST = "the driver died, with its master, ledger and memory topics, and began again"
    COMMIT = "a step committed outputs and an offset"
    COMMIT_REFUSED = "the step of a zombie, or one made already, was refused"
    COMMIT_FAILED = "a commit failed for certain"
    COMMIT_IN_DOUBT = "nobody knew whether a commit took effect"
    PRODUCE_IN_DOUBT = "nobody knew whether a produce to memory took effect"
    POISON_DEATH = "a row killed the process of its worker"
    ISOLATED = "a message that killed workers was claimed alone"
    DEAD_LETTER = "a row is a dead letter"
    RUN_FAILED = "a run failed and another went on"
    PAUSED = "a run paused, because its budget was spent"
    PAUSED_AGAIN = "a run paused again with the same budget, and paid for nothing new"
    BUDGET_RAISED = "a run went on with a larger budget"
    CALL = "the provider was called"
    CALL_REUSED = "a claim was answered with a recorded result"
    CALL_AWAITED = "a worker waited for another's call, or for the budget of calls under way"
    CALL_IN_DOUBT = "a claim ended in doubt"
    CALL_TIMED_OUT = "a call timed out"
    CALL_AGAIN = "a call in doubt was made again"
    CALL_HELD = "a call in doubt was held, and the run failed"
    CALL_REPEATED = "a call had a result already when another came"
    ZOMBIE_RESULT = "a worker without a lease brought the first result of a call"
    OVER_BUDGET = "a run cost more than the budget: only answers told the cost"
    ROW = "a durable topic has a row"

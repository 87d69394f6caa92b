"""The write coordinator of stores: many writers, one buffer, one flush at a time.

Every write gets an epoch, in the order in which the coordinator takes writes. A flush moves all
that is buffered into storage. Two watermarks say how far that is: epochs at or below *flushed* are
in the snapshot that readers see, and epochs at or below *durable* survive a power failure. The
order is always: apply, publish the snapshot, advance flushed, wait for storage, advance durable,
answer.
"""

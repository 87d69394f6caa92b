"""How a worker makes the calls of an operator: its kinds, threads, time-outs, retries, ledger.

The order of an expensive call: its claim is durable → the call is made → its result is durable in
the ledger → the unit is done. A call that was claimed is never given up silently: its result is
recorded, or the ledger learns that it cost nothing, or it stays in doubt.
"""

"""Kills a Session that has read far ahead; times when the next one repeats its checkpoint."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import headrace
from headrace.bench.bench_journal import documents, publish
from headrace.bench.processes import child, owner
from headrace.bench.steps import step
from headrace.settings import ServiceSettings
from headrace.shuffle.member.local_members import LocalMembers

_MEMBERS = 2
_JOURNALS = 8
_TRANSACTION = 1000
_BINDINGS = (headrace.Binding(collection="bench"),)


def bench_recovery(directory: Path, documents_ahead: int = 1_000_000) -> dict[str, float]:
    """Kill a Session that has taken one checkpoint and committed none, after its members read all.

    `first_checkpoint_s` is the time from the kill until a new Session on the same members shows the
    same checkpoint, byte for byte; `all_visible_s` the time until everything is visible again.
    """
    location = directory / "workspace"
    with (
        owner(location),
        headrace.open(location) as workspace,
        LocalMembers(_MEMBERS, directory, processes=True) as members,
    ):
        step(f"publishing {documents_ahead:,} documents, which members read ahead")
        transactions = max(1, documents_ahead // _TRANSACTION)
        publish(workspace, "bench", [documents(_TRANSACTION, 68)], transactions, _JOURNALS)
        settings = (str(location), *members.addresses)
        with child("-m", "headrace.bench.bench_recovery", *settings) as session:
            assert session.stdin
            assert session.stdout
            print(members.service.token, file=session.stdin, flush=True)
            handed_out = headrace.Checkpoint.decode(bytes.fromhex(session.stdout.readline()))
            ahead = int(session.stdout.readline())
            killed_s = time.perf_counter()
            session.kill()
        step("the Session is killed, and another one takes over")
        with headrace.Shuffle(
            workspace,
            _BINDINGS,
            members.addresses,
            read_through=handed_out,
            cut=workspace.journals(),
            service=members.service,
        ) as shuffle:
            opened_s = time.perf_counter()
            checkpoints = shuffle.drain()
            first = next(checkpoints)
            first_s = time.perf_counter() - killed_s
            assert first.delta.encode() == handed_out.encode()
            for _ in checkpoints:
                pass
            all_s = time.perf_counter() - killed_s
    return {
        "first_checkpoint_s": first_s,
        "open_s": opened_s - killed_s,
        "all_visible_s": all_s,
        "documents_ahead": documents_ahead,
        "queued_mib": ahead / (1 << 20),
    }


def _hold(location: str, addresses: list[str]) -> None:
    """Print a checkpoint, then the bytes that the members hold once they have read all; wait."""
    service = ServiceSettings(token=sys.stdin.readline().strip())
    with headrace.open(location) as workspace:
        cut = workspace.journals()
        with headrace.Shuffle(workspace, _BINDINGS, addresses, cut=cut, service=service) as shuffle:
            first = shuffle.next_checkpoint(documents_max=1)
            assert first
            print(first.delta.encode().hex(), flush=True)
            while not (status := shuffle.status()).settled or status.places < _JOURNALS:
                time.sleep(0.01)
            print(sum(each.queue_bytes for each in status.members), flush=True)
            sys.stdin.read()


if __name__ == "__main__":
    _hold(sys.argv[1], sys.argv[2:])

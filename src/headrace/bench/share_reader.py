"""A process that reads shares of checkpoints: it prints the number of documents of each.

Its first line of standard input says how to reach members. Every other line is a share.
"""

from __future__ import annotations

import sys

from headrace.decoders import decode_json
from headrace.settings import ServiceSettings
from headrace.shuffle.queue.queue_client import Share


def main() -> None:
    service = decode_json(sys.stdin.readline(), ServiceSettings)
    print(0, flush=True)
    for line in sys.stdin:
        share = decode_json(line, Share)
        print(sum(batch.num_rows for _, batch in share.read(service)), flush=True)


if __name__ == "__main__":
    main()

"""Values of types are decoded by any number of threads, also the first time."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headrace.decoders import convert, decode_json, decode_msgpack
from headrace.transport.owned_directory import OwnerAddress

FIRST_DECODINGS = """
import sys, threading, types
import msgspec
from headrace.decoders import convert, decode_json, decode_msgpack

SOURCE = '''
from __future__ import annotations
import msgspec

class Inner(msgspec.Struct, frozen=True):
    a: int
    b: list[str]

class Outer(msgspec.Struct, frozen=True):
    x: Inner
    y: tuple[Inner, ...]
'''
PLAIN = {"x": {"a": 1, "b": ["q"]}, "y": [{"a": 2, "b": []}]}
TEXT, PACKED = msgspec.json.encode(PLAIN), msgspec.msgpack.encode(PLAIN)
DECODE = {
    "json": lambda kind: decode_json(TEXT, kind),
    "msgpack": lambda kind: decode_msgpack(PACKED, kind),
    "plain": lambda kind: convert(PLAIN, kind),
}[sys.argv[1]]

sys.setswitchinterval(1e-6)
for _ in range(200):
    module = sys.modules["made"] = types.ModuleType("made")
    exec(SOURCE, module.__dict__)
    start, found = threading.Barrier(4), []

    def decode():
        start.wait()
        found.append(DECODE(module.Outer))

    threads = [threading.Thread(target=decode) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and all(each == found[0] for each in found)
"""


@pytest.mark.parametrize("form", ["json", "msgpack", "plain"])
def test_threads_that_decode_a_type_for_the_first_time_do_not_meet(form: str) -> None:
    """msgspec itself crashes: two threads see the half of what one of them works out."""
    ended = subprocess.run(
        [sys.executable, "-c", FIRST_DECODINGS, form], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_all_forms_give_the_same_value() -> None:
    address = OwnerAddress("grpc://127.0.0.1:1", "token", 7)
    plain = {"address": "grpc://127.0.0.1:1", "token": "token", "process": 7}
    text = b'{"address": "grpc://127.0.0.1:1", "token": "token", "process": 7}'
    packed = b"\x83\xa7address\xb2grpc://127.0.0.1:1\xa5token\xa5token\xa7process\x07"
    assert decode_json(text, OwnerAddress) == address
    assert decode_msgpack(packed, OwnerAddress) == address
    assert convert(plain, OwnerAddress) == address

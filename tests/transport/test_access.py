from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow.flight as fl
import pytest

from headrace.errors import AccessError, PeerLostError, UsageError
from headrace.settings import ServiceSettings
from headrace.transport import Client, Server
from tests.certificate import make_certificate
from tests.transport.echo_service import REPLIES, Echo, say

TOKEN = "correct horse"


def greet(address: str, settings: ServiceSettings) -> str:
    with Client(address, settings) as client, client.converse("echo", REPLIES) as channel:
        return say(channel, "hello")


def test_the_right_token_is_let_in() -> None:
    settings = ServiceSettings(token=TOKEN)
    with Server({"echo": Echo()}, settings) as server:
        assert greet(server.address, settings) == "hello"


@pytest.mark.parametrize("token", ["", "correct hors", "correct horse ", "wrong"])
def test_a_missing_or_wrong_token_gets_nothing(token: str) -> None:
    # proves G28
    echo = Echo()
    with Server({"echo": echo}, ServiceSettings(token=TOKEN)) as server:
        for kind in ("echo", "no such service"):
            with (
                Client(server.address, ServiceSettings(token=token)) as client,
                pytest.raises(AccessError) as refused,
            ):
                client.converse(kind, REPLIES)
            assert refused.value.what == f"{kind} at {server.address} refused access"
        assert echo.ends.empty()


def test_every_call_needs_the_token_not_only_ours() -> None:
    # proves G28
    with (
        Server({"echo": Echo()}, ServiceSettings(token=TOKEN)) as server,
        fl.connect(server.address) as flight,
    ):
        with pytest.raises(fl.FlightUnauthenticatedError):
            list(flight.list_flights())
        with pytest.raises(fl.FlightUnauthenticatedError):
            list(flight.do_action("anything"))
        with pytest.raises(fl.FlightUnauthenticatedError):
            flight.do_get(fl.Ticket(b"anything"))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org"])
def test_listening_beyond_this_machine_needs_a_token(host: str) -> None:
    # proves G28
    with pytest.raises(UsageError, match=f"listening on {host} without a token"):
        Server({"echo": Echo()}, ServiceSettings(host=host))


def test_a_token_allows_listening_everywhere() -> None:
    settings = ServiceSettings(host="0.0.0.0", token=TOKEN)
    with Server({"echo": Echo()}, settings) as server:
        assert greet(server.address.replace("0.0.0.0", "127.0.0.1"), settings) == "hello"


def test_the_default_is_loopback() -> None:
    # proves G28
    with Server({"echo": Echo()}, ServiceSettings()) as server:
        assert server.address.startswith("grpc://127.0.0.1:")


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> ServiceSettings:
    return certify(tmp_path_factory.mktemp("own"))


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> ServiceSettings:
    return certify(tmp_path_factory.mktemp("foreign"))


def test_tls_with_the_right_root(own: ServiceSettings) -> None:
    with Server({"echo": Echo()}, own) as server:
        assert server.address.startswith("grpc+tls://127.0.0.1:")
        assert greet(server.address, own) == "hello"


def test_tls_with_the_wrong_root_or_none_is_refused(
    own: ServiceSettings, foreign: ServiceSettings
) -> None:
    # proves G28
    echo = Echo()
    with Server({"echo": echo}, own) as server:
        for root in (foreign.tls_root, ""):
            settings = msgspec.structs.replace(own, tls_root=root)
            with pytest.raises(AccessError, match=r"the TLS handshake with echo at .*set tls_root"):
                greet(server.address, settings)
        assert echo.ends.empty()


def test_a_plain_call_to_a_tls_server_gets_nothing(own: ServiceSettings) -> None:
    # proves G28
    with Server({"echo": Echo()}, own) as server, pytest.raises(PeerLostError):
        greet(server.address.replace("grpc+tls", "grpc"), ServiceSettings(token=own.token))


def test_half_of_the_tls_settings_is_refused(own: ServiceSettings) -> None:
    with pytest.raises(UsageError, match="belong together"):
        Server({"echo": Echo()}, msgspec.structs.replace(own, tls_key=""))


def test_a_missing_certificate_is_named(own: ServiceSettings, tmp_path: Path) -> None:
    missing = str(tmp_path / "nothing.pem")
    with pytest.raises(UsageError, match=f"cannot read {missing}"):
        Server({"echo": Echo()}, msgspec.structs.replace(own, tls_certificate=missing))
    with pytest.raises(UsageError, match=f"cannot read {missing}"):
        Client("grpc+tls://127.0.0.1:1", msgspec.structs.replace(own, tls_root=missing))


def test_a_taken_port_is_named() -> None:
    with Server({"echo": Echo()}, ServiceSettings()) as server:
        port = int(server.address.rpartition(":")[2])
        with pytest.raises(UsageError, match=f"port {port} of 127.0.0.1 is in use; end "):
            Server({"echo": Echo()}, ServiceSettings(port=port))


def test_what_is_no_address_is_refused() -> None:
    with pytest.raises(UsageError, match="'nonsense' is not an address"):
        Client("nonsense", ServiceSettings())


def test_heartbeats_that_do_not_fit_the_silence_are_refused() -> None:
    with pytest.raises(UsageError, match="heartbeat_s=2 does not fit silence_s=3"):
        Server({"echo": Echo()}, ServiceSettings(heartbeat_s=2, silence_s=3))


def certify(directory: Path) -> ServiceSettings:
    """Return settings with a new certificate that is valid for loopback."""
    made = make_certificate(directory)
    return ServiceSettings(
        token=TOKEN,
        tls_certificate=made.certificate,
        tls_key=made.key,
        tls_root=made.certificate,
    )

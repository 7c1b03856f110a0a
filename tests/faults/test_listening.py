"""Other ways to listen and to log, on real servers: HTTPS, client certificates, a Unix socket, a log file, JSON."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest

from tests.certificates import write_certificate
from tests.servers import Server, start_server, wait_for

SERVE = ("omni-app", "serve", "stub", "--port", "{port}")


def get(server: Server, client: httpx.Client, path: str) -> httpx.Response:
    """The first answer, however long the server takes to come up."""

    def attempt() -> httpx.Response | None:
        assert server.process.poll() is None, server.output()
        try:
            return client.get(path)
        except httpx.ConnectError as error:
            if "ssl" in str(error).lower() or "tls" in str(error).lower():
                raise
            return None

    return wait_for(attempt, 30, f"an answer\n{server.output()}")


def tls_client(server: Server, trusted: Path, own: Sequence[Path] = ()) -> httpx.Client:
    context = ssl.create_default_context(cafile=str(trusted))
    if own:
        context.load_cert_chain(*own)
    return httpx.Client(verify=context, base_url=f"https://127.0.0.1:{server.port}", timeout=5)


def test_https_and_client_certificates(tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path, "server")
    other, other_key = write_certificate(tmp_path, "client")
    tls = ("--ssl-certfile", str(certificate), "--ssl-keyfile", str(key))
    demanding = ("--ssl-ca-certs", str(other), "--ssl-cert-reqs", "2")
    with start_server((*SERVE, *tls)) as server, tls_client(server, certificate) as client:
        assert get(server, client, "/readyz").status_code == 200
        wait_for(lambda: f"Ready: https://127.0.0.1:{server.port}" in server.output(), 10, "the announcement")
    with start_server((*SERVE, *tls, *demanding)) as server:
        with tls_client(server, certificate, (other, other_key)) as client:
            assert get(server, client, "/readyz").status_code == 200
        with tls_client(server, certificate) as stranger, pytest.raises(httpx.TransportError):
            stranger.get("/readyz")


def test_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "omni.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))  # what a killed server leaves behind
    with start_server((*SERVE, "--uds", str(path), "--workers", "2")) as server:
        transport = httpx.HTTPTransport(uds=str(path))
        with httpx.Client(transport=transport, base_url="http://localhost", timeout=5) as client:
            assert get(server, client, "/readyz").status_code == 200
            wait_for(lambda: f"Ready: {path}" in server.output(), 10, "the announcement")
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", server.port)) != 0
        with start_server((*SERVE, "--uds", str(path))) as second:
            assert second.wait() == 1
            assert f"--uds {path}: another server listens on it" in second.output()
        assert server.stop() == 0
        assert not path.exists()


def test_a_connection_that_idles_or_dawdles_is_closed() -> None:
    with start_server((*SERVE, "--keep-alive-timeout", "1")) as server:
        server.wait_ready()
        for start in (b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /livez HT"):
            with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
                connection.sendall(start)
                while connection.recv(1 << 16):
                    pass  # ends when the server closes, or fails with a time-out


def test_everything_goes_to_the_log_file_as_json(tmp_path: Path) -> None:
    file = tmp_path / "server.log"
    words = ("--log-file", str(file), "--log-format", "json", "--disable-access-log-for-endpoints", "/version")
    with start_server((*SERVE, *words)) as server:
        server.wait_ready()
        for path in ("/version", "/v1/models", "/nothing"):
            server.get(path)
        assert server.stop() == 0
        server.assert_nothing_left()
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        assert [line["request"]["path"] for line in lines if "request" in line] == ["/v1/models", "/nothing"]
        assert "ready after" in "".join(line["message"] for line in lines if line["logger"] == "app.master")
        assert "INFO" not in server.output()


def test_the_level_and_the_access_log(tmp_path: Path) -> None:
    words = ("--log-level", "WARNING", "--disable-access-log", "--disable-docs")
    with start_server((*SERVE, *words)) as server:
        server.wait_ready()
        assert server.get("/openapi.json").status_code == server.get("/docs").status_code == 404
        assert server.get("/openapi.json").json()["error"]["type"] == "not_found_error"
        assert server.stop() == 0
        assert "INFO" not in server.output()


def test_the_bare_granian_line_takes_the_log_flags_as_variables(tmp_path: Path) -> None:
    file = tmp_path / "server.log"
    with start_server(env={"OMNI_MODEL": "stub", "OMNI_LOG_FILE": str(file)}) as server:
        server.wait_ready()
        server.get("/v1/models")
        assert server.stop() == 0
        assert '"GET /v1/models" 200' in file.read_text()
        assert "app.access" not in server.output()

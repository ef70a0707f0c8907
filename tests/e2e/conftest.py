"""One gateway with generous time-outs for most tests, one with short ones, and the engines behind them."""

from __future__ import annotations

import datetime
import ipaddress
import os
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from e2e.client import KEY
from e2e.engine import RawEngine
from e2e.gateway import Gateway
from engine_process import EngineProcess
from tokenizer_file import make_tokenizer

LOW_KEY = "e2e-low-0123456789abcdef"
RAISE_KEY = "e2e-raise-0123456789abcdef"
SIM_KEY = "e2e-sim-0123456789abcdef"
ENGINE_KEY = "engine-secret-of-e2e"


@dataclass
class Engines:
    sim: EngineProcess
    raw: RawEngine
    left: RawEngine
    right: RawEngine
    closed_port: int
    all: list[RawEngine] = field(default_factory=list)


@pytest.fixture(scope="session")
def engines() -> Iterator[Engines]:
    raw, left, right = RawEngine(["raw", "raw-set", "raw-counted"]), RawEngine(["twin"]), RawEngine(["twin"])
    sim = EngineProcess(["--allow-fault-header", "--decode-rate", "2000", "--keep-alive", "600"])
    sim.start()
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening: nobody else gets the port, and it refuses
        try:
            yield Engines(sim, raw, left, right, closed.getsockname()[1])
        finally:
            for engine in (raw, left, right):
                engine.close()
            assert sim.stop() == 0


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Of localhost, signed by itself."""
    folder = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    cert = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=2))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(cert.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "key.pem").write_bytes(private)
    return folder / "cert.pem", folder / "key.pem"


@pytest.fixture(scope="session")
def trust(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate[0]))


@pytest.fixture(scope="session")
def gateway(engines: Engines, certificate: tuple[Path, Path]) -> Iterator[Gateway]:
    def local(
        engine: RawEngine | EngineProcess, name: str, *models: str, path: str = "", **more: object
    ) -> dict[str, object]:
        url = f"http://127.0.0.1:{engine.port}{path}"
        return {"name": name, "url": url, "models": list(models), "health_interval": 0.5, **more}

    made = Gateway(
        {
            "listeners": [
                {"address": "127.0.0.1:0", "trusted_proxies": ["127.0.0.1"]},
                {"address": "127.0.0.1:0"},
                {"address": "127.0.0.1:0", "tls": {"cert": str(certificate[0]), "key": str(certificate[1])}},
                {"address": f"unix:/tmp/fb-e2e-{os.getpid()}.sock"},
            ],
            "engines": [
                local(engines.sim, "sim", "forebay-sim"),
                local(engines.raw, "raw", "raw", "raw-set", "raw-counted", api_key=ENGINE_KEY),
                local(engines.raw, "maker", "gpt-5", provider="openai"),
                local(engines.raw, "below", "raw-below", path="/some/where"),
                local(engines.raw, "vendor", "raw-vendor", kind="openai"),
                local(engines.left, "left", "twin"),
                local(engines.right, "right", "twin"),
                {"name": "away", "url": f"http://127.0.0.1:{engines.closed_port}", "models": ["away"]},
            ],
            # The engines are told to break: none is taken out for it.
            "health": {"failures": 1_000, "error_share": 1.0, "rest_most": 0.001},
            "models": {
                "raw": {"aliases": ["raw-alias"]},
                "raw-counted": {"tokenizer": str(make_tokenizer(certificate[0].parent))},
                "raw-set": {"defaults": {"temperature": 0.25, "max_tokens": 77, "stop": ["x"]}},
            },
            "callers": {
                "failed_keys_per_minute": 5,
                "keys": [
                    {"name": "e2e", "key": KEY, "class": "normal"},
                    {"name": "low", "key": LOW_KEY, "class": "low"},
                    {"name": "raise", "key": RAISE_KEY, "class": "low", "may_raise_class": True},
                    {"name": "sim", "key": SIM_KEY, "models": ["forebay-sim"]},
                ],
            },
            "limits": {
                "header_bytes": 16384,
                "header_count": 60,
                "body_bytes": 24 << 20,
                "response_bytes": 4 << 20,
                "event_bytes": 65536,
            },
            "cors": {"origins": ["https://app.example"]},
            "retries": {"budget": 1.0},
        }
    )
    try:
        made.wait_until_ready("forebay-sim", "raw", "twin")
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="session")
def hasty(engines: Engines) -> Iterator[Gateway]:
    """Short time-outs, though longer than a busy machine stands still, small limits, no trusted proxy."""
    made = Gateway(
        {
            "listeners": [{"address": "127.0.0.1:0"}],
            "engines": [
                {"name": "raw", "url": f"http://127.0.0.1:{engines.raw.port}", "models": ["raw"]},
                {"name": "left", "url": f"http://127.0.0.1:{engines.left.port}", "models": ["twin"]},
                {"name": "right", "url": f"http://127.0.0.1:{engines.right.port}", "models": ["twin"]},
            ],
            "health": {"failures": 1_000, "error_share": 1.0, "rest_most": 0.001},
            "callers": {"failed_keys_per_minute": 3, "keys": [{"name": "e2e", "key": KEY}]},
            "limits": {"body_bytes": 65536, "pipelined": 2, "error_bytes": 4096, "write_buffer_bytes": 4096},
            "timeouts": {
                "header": 2.4,
                "body": 3.2,
                "idle": 2.8,
                "write": 4.0,
                "connect": 10.0,
                "first_byte": 3.2,
                "stream_idle": 2.6,
            },
        }
    )
    try:
        made.wait_until_ready("raw", "twin")
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="session")
def spoken() -> Iterator[tuple[Gateway, RawEngine]]:
    """One engine that is taken for one of each kind that is spoken to otherwise, and for two APIs that bill to the end:
    its models are called by the kinds."""
    engine = RawEngine(["any"])

    def kind(name: str, kind: str, **more: object) -> dict[str, object]:
        url = f"http://127.0.0.1:{engine.port}"
        return {"name": name, "url": url, "kind": kind, "models": [name], "api_key": ENGINE_KEY, **more}

    bounds = {"seconds": 60.0, "bytes": 20_000, "at_once": 2}
    made = Gateway(
        {
            "listeners": [{"address": "127.0.0.1:0"}],
            "engines": [
                kind("llamacpp", "llamacpp"),
                kind("sglang", "sglang"),
                kind("both-sglang", "sglang", models=["both"]),
                kind("both-plain", "openai", models=["both"]),
                kind("ranked", "vllm", priority=True),
                kind("ranked-sglang", "sglang", priority=True),
                kind("folded", "vllm", fold=True, models=["folded", "folded-too"]),
                kind("metered", "openai", on_client_gone="drain", drain=bounds),
                kind("briefly", "openai", on_client_gone="drain", drain={**bounds, "seconds": 2.0}),
                kind("claude", "anthropic", models=["claude", "claude-long-name"], on_client_gone="drain"),
            ],
            "models": {"claude-long-name": {"aliases": ["short"]}},
            "callers": {
                "keys": [
                    {"name": "e2e", "key": KEY, "class": "normal"},
                    {"name": "raise", "key": RAISE_KEY, "class": "low", "may_raise_class": True},
                ]
            },
            "limits": {"response_bytes": 1 << 20, "event_bytes": 65_536, "error_bytes": 4_096},
            "timeouts": {"first_byte": 60.0, "stream_idle": 4.0},
        }
    )
    try:
        made.wait_until_ready("llamacpp", "metered", "claude")
        yield made, engine
    finally:
        made.stop()
        engine.close()

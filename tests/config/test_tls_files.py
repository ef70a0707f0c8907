from __future__ import annotations

import os
from pathlib import Path

import pytest

from forebay.config.load import load, loads
from forebay.config.problems import ConfigError


def problems(folder: Path, tls: str) -> list[str]:
    text = f"listeners:\n  - address: 127.0.0.1:1\n    tls: {tls}\n"
    try:
        loads(text, "f", {"PASSWORD": "sesame", "WRONG": "simsim"}, base=folder)
    except ConfigError as e:
        return [str(p) for p in e.problems]
    return []


@pytest.mark.parametrize(
    "tls",
    [
        "{cert: cert.pem, key: key.pem}",
        "{cert: cert.pem, key: key.pem, client_ca: cert.pem, min_version: 1.3}",
        "{cert: cert.pem, key: locked.pem, key_password: '${PASSWORD}'}",
    ],
)
def test_what_can_be_served(tls: str, certificates: Path) -> None:
    assert problems(certificates, tls) == []


def test_what_cannot(certificates: Path) -> None:
    d = certificates
    (d / "text.pem").write_text("hello\n")
    os.mkfifo(d / "pipe")
    at = "f:3: listeners[0].tls"
    assert problems(d, "{cert: no.pem, key: nor.pem, client_ca: text.pem}") == [
        f"{at}.cert: cannot read {d}/no.pem: No such file or directory",
        f"{at}.client_ca: {d}/text.pem holds no PEM certificate",
        f"{at}.key: cannot read {d}/nor.pem: No such file or directory",
    ]
    assert problems(d, "{cert: pipe, key: .}") == [
        f"{at}.cert: {d}/pipe is not a file",
        f"{at}.key: {d} is not a file",
    ]
    assert problems(d, "{cert: cert.pem, key: text.pem}") == [f"{at}.key: {d}/text.pem holds no PEM private key"]
    assert problems(d, "{cert: cert.pem, key: other.pem}") == [
        f"{at}.key: the private key in {d}/other.pem does not belong to the certificate"
    ]
    assert problems(d, "{cert: cert.pem, key: locked.pem}") == [
        f"{at}.key: the private key in {d}/locked.pem is encrypted; give key_password"
    ]
    assert problems(d, "{cert: cert.pem, key: locked.pem, key_password: '${WRONG}'}") == [
        f"{at}.key_password: the password does not open the private key in {d}/locked.pem"
    ]
    assert problems(d, '{cert: cert.pem, key: "-----BEGIN PRIVATE KEY-----\\nMC4C"}') == [
        f"{at}.key: a path to a PEM file is needed, not what such a file holds"
    ]
    assert problems(d, "{cert: cert.pem, key: key.pem, min_version: 1.1}") == [
        f"{at}.min_version: not one of the choices (found 1.1; allowed 1.2, 1.3)"
    ]


def test_an_unreadable_key_is_named(tmp_path: Path) -> None:
    for name in ("cert.pem", "key.pem"):
        (tmp_path / name).touch(mode=0)
    me = os.geteuid()
    if me == 0:  # who reads every file
        os.seteuid(65_534)
    try:
        found = problems(tmp_path, "{cert: cert.pem, key: key.pem}")
    finally:
        os.seteuid(me)
    assert found == [
        f"f:3: listeners[0].tls.cert: cannot read {tmp_path}/cert.pem: Permission denied",
        f"f:3: listeners[0].tls.key: cannot read {tmp_path}/key.pem: Permission denied",
    ]


def test_an_engine_s_authorities(certificates: Path, tmp_path: Path) -> None:
    file = tmp_path / "forebay.yaml"
    engine = "engines:\n  - name: a\n    url: https://h\n    tls: {ca: %s}\n"
    file.write_text(engine % (certificates / "cert.pem"))
    assert load(file, {}).engines[0].tls.ca == certificates / "cert.pem"
    file.write_text(engine % (certificates / "key.pem"))
    with pytest.raises(ConfigError) as raised:
        load(file, {})
    expected = f"{file}:4: engines[0].tls.ca: {certificates}/key.pem holds no PEM certificate"
    assert str(raised.value) == expected

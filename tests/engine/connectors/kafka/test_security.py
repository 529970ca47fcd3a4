"""Options of encryption and authentication are checked before anything connects."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from headrace.engine.connectors.kafka.security import Security
from headrace.engine.contract.errors import UserError


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"ssl_ca": "x"}, "Kafka has no option 'ssl_ca': did you mean 'ssl_cafile'"),
        ({"security_protocol": "TLS"}, "security_protocol='TLS': choose one of 'PLAINTEXT', 'SSL'"),
        ({"security_protocol": "SASL_SSL"}, "sasl_mechanism='None': choose one of"),
        (
            {"security_protocol": "SASL_SSL", "sasl_mechanism": "MAGIC"},
            "sasl_mechanism='MAGIC': choose one of .*'SCRAM-SHA-512'",
        ),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Security(options)


def test_missing_credentials_are_named() -> None:
    security = Security({"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN"})
    with pytest.raises(UserError, match="sasl_plain_username required"):
        security.sasl("host")


def test_passwords_are_not_shown() -> None:
    security = Security({"sasl_plain_password": "secret", "ssl_password": "secret"})
    assert "secret" not in repr(security)


def test_a_mechanism_is_not_begun_without_its_protocol() -> None:
    assert Security({"sasl_mechanism": "PLAIN"}).mechanism is None


def test_an_unreadable_certificate_is_the_users_matter(tmp_path: Path) -> None:
    security = Security({"security_protocol": "SSL", "ssl_cafile": str(tmp_path / "none.pem")})
    with socket.socket() as plain, pytest.raises(UserError, match="ssl_ options of Kafka"):
        security.wrap(plain, "host")
    with socket.socket() as plain:
        assert Security().wrap(plain, "host") is plain

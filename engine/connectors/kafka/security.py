"""How brokers are reached: plain or TLS, with or without SASL.

Options have the names of kafka-python, whose SASL mechanisms do the exchange: PLAIN, SCRAM-SHA-256,
SCRAM-SHA-512, OAUTHBEARER, and GSSAPI and AWS_MSK_IAM where their own libraries are installed. A
session that the broker limits (KIP-368) is not authenticated again: the broker closes the
connection, and the next one authenticates.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kafka.net.sasl import SASL_MECHANISMS, get_sasl_mechanism

from ...contract.errors import UserError
from ...contract.suggestion import did_you_mean, quoted

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
#: {option: its default}.
_DEFAULTS: dict[str, object] = {
    "security_protocol": "PLAINTEXT",
    "ssl_check_hostname": True,
    "ssl_cafile": None,
    "ssl_certfile": None,
    "ssl_keyfile": None,
    "ssl_password": None,
    "ssl_crlfile": None,
    "sasl_mechanism": None,
    "sasl_plain_username": None,
    "sasl_plain_password": None,
    "sasl_kerberos_name": None,
    "sasl_kerberos_service_name": "kafka",
    "sasl_kerberos_domain_name": None,
    "sasl_oauth_token_provider": None,
}


@dataclass(frozen=True, slots=True)
class Security:
    """Options of a connection's encryption and authentication; its repr tells no password."""

    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for option in self.options:
            if option not in _DEFAULTS:
                raise UserError(
                    f"Kafka has no option {option!r}: {did_you_mean(option, _DEFAULTS)}"
                )
        if self.protocol not in PROTOCOLS:
            raise UserError(
                f"security_protocol={self.protocol!r}: choose one of {quoted(PROTOCOLS)}"
            )
        if self.mechanism is not None and self.mechanism not in SASL_MECHANISMS:
            raise UserError(
                f"sasl_mechanism={self.mechanism!r}: choose one of {quoted(SASL_MECHANISMS)}"
            )

    @property
    def protocol(self) -> str:
        """One of `PROTOCOLS`."""
        return str(self._option("security_protocol"))

    @property
    def mechanism(self) -> str | None:
        """Name of the SASL mechanism; None: the broker asks for none."""
        if not self.protocol.startswith("SASL_"):
            return None
        return str(self._option("sasl_mechanism"))

    def wrap(self, plain: socket.socket, host: str) -> socket.socket:
        """Encrypt a connected socket, where the protocol says so. Raises: OSError, UserError."""
        if not self.protocol.endswith("SSL"):
            return plain
        return self._ssl_context().wrap_socket(plain, server_hostname=host)

    def sasl(self, host: str) -> Any:
        """Begin an exchange of the mechanism with a host. Raises: UserError."""
        options = {name: self._option(name) for name in _DEFAULTS if name.startswith("sasl_")}
        given = {name: value for name, value in options.items() if value is not None}
        try:
            return get_sasl_mechanism(self.mechanism)(
                host=host, **{**given, "security_protocol": self.protocol}
            )
        except Exception as error:
            raise UserError(f"SASL {self.mechanism} cannot begin: {error!r}") from error

    def _option(self, name: str) -> Any:
        return self.options.get(name, _DEFAULTS[name])

    def _ssl_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self._option("ssl_check_hostname")
        try:
            if self._option("ssl_cafile"):
                context.load_verify_locations(self._option("ssl_cafile"))
            if self._option("ssl_certfile"):
                context.load_cert_chain(
                    self._option("ssl_certfile"),
                    self._option("ssl_keyfile"),
                    self._option("ssl_password"),
                )
            if self._option("ssl_crlfile"):
                context.load_verify_locations(self._option("ssl_crlfile"))
                context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
        except (OSError, ValueError) as error:
            raise UserError(
                f"a file of the ssl_ options of Kafka cannot be used: {error}"
            ) from error
        return context

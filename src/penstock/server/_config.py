"""The settings of a server, checked before it starts."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.catalog.vending import Vendor, make_vendor
from penstock.errors import InvalidInputError

DEFAULT_PORT = 7117
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_MAX_WORKERS = 256


@dataclass(frozen=True)
class ServerConfig:
    """What a server needs to know; its repr contains no secrets."""

    database: str = field(repr=False)
    """`postgresql://…`, `sqlite:///path`, or the path of a file or folder for SQLite."""
    storage: str
    """Where new tables are: a folder, or `s3://`, `gs://` or `az://` with a path."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Storage options of the server itself, credentials included."""
    role_arn: str | None = None
    """The role that the server assumes on S3 to issue credentials; it may reach all tables."""
    credential_lifetime_s: float = 3600.0
    allow_shared_credentials: bool = False
    """Whether clients may get credentials that reach other tables too, where the store cannot narrow them."""
    hierarchical: bool = False
    """Whether the Azure account has a hierarchical namespace, so that credentials can be limited to a folder."""
    locations: tuple[str, ...] = ()
    """Other places whose tables the server's admin may register."""
    retention_days: float = 7.0
    """How long a dropped table can be restored."""
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    """0 chooses a free port."""
    workers: int = 1
    rate_limit: float = 200.0
    """Requests per second that a key may make to one worker, and failed authentications of one client address."""
    tls_cert: str | None = None
    tls_key: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise InvalidInputError(f"--port must be a number from 0 to 65535, not {self.port}")
        if not 1 <= self.workers <= _MAX_WORKERS:
            raise InvalidInputError(f"--workers must be a number from 1 to {_MAX_WORKERS}, not {self.workers}")
        if not 0 < self.rate_limit < float("inf"):
            raise InvalidInputError(f"--rate-limit must be a positive number of requests, not {self.rate_limit:g}")
        if not 0 <= self.retention_days <= 36_500:
            raise InvalidInputError(f"--retention-days must be a number from 0 to 36500, not {self.retention_days:g}")
        if not 1 <= self.credential_lifetime_s <= 12 * 3600:
            raise InvalidInputError(
                f"--credential-lifetime must be a number of seconds from 1 to 43200, not {self.credential_lifetime_s:g}"
            )
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidInputError("TLS needs a certificate and its key; give both --tls-cert and --tls-key")
        for path in (self.tls_cert, self.tls_key):
            if path is not None and not os.path.isfile(path):
                raise InvalidInputError(f"there is no file {path}; --tls-cert and --tls-key name PEM files")

    @property
    def is_private(self) -> bool:
        """Whether nobody on the network can read requests: they stay on this machine, or are encrypted."""
        return self.host in _LOOPBACK or self.tls_cert is not None


def new_vendor(config: ServerConfig) -> Vendor:
    """The issuer of credentials; raises `InvalidInputError` if the store cannot narrow them."""
    return make_vendor(
        config.storage,
        options=config.options,
        role_arn=config.role_arn,
        lifetime_s=config.credential_lifetime_s,
        allow_shared=config.allow_shared_credentials,
        hierarchical=config.hierarchical,
        locations=config.locations,
    )

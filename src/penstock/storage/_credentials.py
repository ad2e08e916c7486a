"""Short-lived credentials that someone else issues, and that are replaced before they expire."""

import json
import random
import re
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from penstock.errors import AccessDeniedError, StorageError, StorageTimeoutError

_PREFIX = re.compile(r"^(aws_|azure_storage_|azure_|google_)")
_SECRETS = {
    "s3": {"access_key_id": "access_key_id", "secret_access_key": "secret_access_key", "session_token": "token"},
    "az": {"sas_token": "sas_token", "account_key": "access_key"},
    "gs": {"token": "token"},
}
"""The secret options of a cloud, and their names in the answer of a credential provider."""
_NEEDED = {"s3": ("access_key_id", "secret_access_key"), "az": ("sas_token",), "gs": ("token",)}
_ALIASES = {
    "s3": {
        "token": "session_token",
        "endpoint_url": "endpoint",
        "endpoint_url_s3": "endpoint",
        "default_region": "region",
    },
    "az": {"sas_key": "sas_token", "access_key": "account_key"},
    "gs": {"bearer_token": "token"},
}
_RENEW_AFTER = (0.4, 0.6)  # of the lifetime: workers that start together do not renew together
_MARGIN = 0.05  # of the lifetime, before its end: a request takes some time to arrive
_MAX_MARGIN_S = 5.0
_POLL_S = 0.1  # how often a client asks for the result of a renewal in progress
_MAX_CACHED_S = 86_400.0
_PROVIDER_WAIT_S = 30.0
_REFUSAL_PAUSE_S = 10.0

_jitter = random.SystemRandom()  # forked workers would share the state of another generator


@dataclass(frozen=True, slots=True)
class Credentials:
    """Rights to a part of a store."""

    options: Mapping[str, str]
    """Storage options by obstore's names, such as `access_key_id`, `secret_access_key` and `session_token`."""
    lifetime_s: float | None
    """How long they are valid from now on; None if they do not expire. A duration, because clocks differ."""
    refusal: str | None = None
    """Why they cannot write; None if they can. Said to the user in place of what the store would say."""

    def __repr__(self) -> str:
        return f"Credentials({', '.join(self.options)}, lifetime_s={self.lifetime_s})"


class CredentialIssuer(Protocol):
    """Issues credentials for a table; can be pickled, because worker processes renew credentials themselves."""

    def issue(self) -> Credentials:
        """New credentials; raises `StorageError` if the issuer does not answer, `AccessDeniedError` if it refuses."""


class IssuedCredentials:
    """Credentials split into secrets and settings, with their times on this process's clock."""

    def __init__(self, scheme: str, credentials: Credentials, *, received_s: float) -> None:
        self.options, self.lifetime_s = dict(credentials.options), credentials.lifetime_s
        self.refusal = credentials.refusal
        secrets, self.settings = split_options(scheme, self.options)
        self.secrets = {name: value for name, value in secrets.items() if value}
        self.signing = self._take_signing(scheme)
        lifetime_s = float("inf") if self.lifetime_s is None else self.lifetime_s
        self.renew_s = received_s + lifetime_s * _jitter.uniform(*_RENEW_AFTER)
        self.expires_s = received_s + lifetime_s - min(lifetime_s * _MARGIN, _MAX_MARGIN_S)
        self.expires_unix_s = time.time() - time.monotonic() + received_s + lifetime_s

    def _take_signing(self, scheme: str) -> dict[str, str]:
        """The settings by which obstore signs requests, or leaves them unsigned, where it takes no secrets for that."""
        public, account = self.settings.pop("skip_signature", ""), self.settings.pop("service_account_key", "")
        if self.secrets:
            return {}
        if public.lower() == "true":
            return {"skip_signature": "true"}
        if scheme != "gs" or not account:
            return {}
        self.settings = _account_settings(account) | self.settings
        return {"service_account_key": account}


class RenewedCredentials:
    """obstore's credential provider for credentials that an issuer renews.

    The contract; if the code disagrees with this list, the code is wrong:

    - The first use after about half of the lifetime starts a renewal in a thread of its own, and goes on with the
      current credentials; so no request waits, and an idle store costs nothing. One renewal runs at a time.
    - A failed renewal is repeated, the more often the closer the end is. Only with expired credentials does a request
      wait, and raise the issuer's error.
    - obstore caches an answer until the next renewal is due: a request does not call into Python.
    - A pickle contains the current credentials and their end. By a clock that is wrong they seem valid for too short,
      which costs a renewal, or for too long (never for longer than their lifetime), and the store refuses them, which
      also does.
    - Threads end with their renewal; a forked process has none.
    """

    refresh_threshold = timedelta(0)
    """How long before `expires_at` obstore calls again; it reads this attribute, and would take five minutes."""

    def __init__(self, scheme: str, uri: str, issuer: CredentialIssuer, credentials: Credentials | None) -> None:
        self._scheme, self._uri, self._issuer = scheme, uri, issuer
        self._current = None if credentials is None else self._accept(credentials, time.monotonic())
        self._replaced_s = float("-inf")
        self.reset_after_fork()

    def __reduce__(self) -> tuple[object, ...]:
        current = self._current
        issued = current and (current.options, current.lifetime_s, current.expires_unix_s, current.refusal)
        return _restore, (self._scheme, self._uri, self._issuer, issued)

    def __call__(self) -> dict[str, Any]:
        """The current credentials, in the form that obstore takes."""
        current, now = self.ensure(_PROVIDER_WAIT_S), time.monotonic()
        cached_s = min(max(current.renew_s - now, _POLL_S), current.expires_s - now)
        secrets: dict[str, Any] = {"token": None} if self._scheme == "s3" else {}
        return (
            secrets
            | current.secrets
            | {"expires_at": datetime.now(UTC) + timedelta(seconds=min(cached_s, _MAX_CACHED_S))}
        )

    @property
    def current(self) -> IssuedCredentials | None:
        """The newest credentials, expired or not; None before the first use, if none were given."""
        return self._current

    def check_writable(self, verb: str, uri: str) -> None:
        """Raise `AccessDeniedError` if the current credentials are known to be for reading only."""
        if (current := self._current) is not None and current.refusal is not None:
            raise AccessDeniedError(f"cannot {verb} {uri}: {current.refusal}")

    def ensure(self, timeout_s: float) -> IssuedCredentials:
        """The current credentials; waits for new ones if they have expired. Raises `StorageError`."""
        current, now = self._current, time.monotonic()
        if current is not None and now < current.renew_s:
            return current
        with self._lock:
            current = self._current  # a renewal may have ended just now
            if now >= max(self._attempt_s, current.renew_s if current is not None else 0.0):
                self._start()
            renewal = self._renewal
        if current is not None and now < current.expires_s:
            return current
        return self._wait(renewal, timeout_s)

    def replace(self, refused: IssuedCredentials, timeout_s: float) -> None:
        """Renew credentials that the store refuses, unless that was done just now. Raises `StorageError`."""
        with self._lock:
            # Those that replaced refused ones may be refused as well: then the right is missing.
            if self._current is not refused or time.monotonic() < self._replaced_s + _REFUSAL_PAUSE_S:
                return
            self._start()
            renewal = self._renewal
        self._wait(renewal, timeout_s)
        self._replaced_s = time.monotonic()

    def reset_after_fork(self) -> None:
        """Forget the lock and the renewal of the parent process, whose thread is missing."""
        self._lock = threading.Lock()
        self._renewal: Future[IssuedCredentials] = Future()
        self._running = False
        self._attempt_s = float("-inf")

    def _start(self) -> None:
        if self._running:
            return
        renewal = Future[IssuedCredentials]()
        threading.Thread(target=self._renew, args=(renewal,), name="penstock-credentials", daemon=True).start()
        self._renewal, self._running = renewal, True

    def _renew(self, renewal: Future[IssuedCredentials]) -> None:
        started_s = time.monotonic()  # the request's time is part of the lifetime
        try:
            issued = self._accept(self._issuer.issue(), started_s)
        except BaseException as error:  # raised by requests, if the current credentials expire
            with self._lock:
                self._running, self._attempt_s = False, time.monotonic() + self._pause_s()
            renewal.set_exception(error)
        else:
            with self._lock:
                self._running, self._attempt_s, self._current = False, float("-inf"), issued
            renewal.set_result(issued)

    def _accept(self, credentials: Credentials, received_s: float) -> IssuedCredentials:
        issued = IssuedCredentials(self._scheme, credentials, received_s=received_s)
        if issued.signing or "access_key" in issued.secrets:
            return issued
        for option in _NEEDED[self._scheme]:
            if option not in issued.secrets:
                raise AccessDeniedError(f"the credentials issued for {self._uri} lack {option}; upgrade the server")
        return issued

    def _pause_s(self) -> float:
        """How long to wait after a failed attempt: the less time is left, the shorter."""
        lifetime_s = left_s = 0.0
        if self._current is not None and self._current.lifetime_s is not None:
            lifetime_s, left_s = self._current.lifetime_s, self._current.expires_s - time.monotonic()
        shortest_s = min(1.0, max(0.1, lifetime_s / 20))
        return max(shortest_s, min(60.0, left_s / 16)) * _jitter.uniform(0.5, 1.0)

    def _wait(self, renewal: Future[IssuedCredentials], timeout_s: float) -> IssuedCredentials:
        if not wait([renewal], timeout_s).done:
            reason = StorageTimeoutError(f"no answer in {timeout_s:.1f} s")
            raise self._translated(reason)
        if (error := renewal.exception()) is not None:
            raise self._translated(error)
        return renewal.result()

    def _translated(self, error: BaseException) -> BaseException:
        reason = f"the credentials for {self._uri} cannot be renewed: {error}"
        translated: StorageError
        if isinstance(error, AccessDeniedError):
            translated = AccessDeniedError(f"{reason}; check the API key and its rights")
        elif isinstance(error, StorageError):
            translated = StorageError(f"{reason}; check that the catalog server is running and can be reached")
        else:
            return error
        translated.__cause__ = error
        return translated


def is_issuer_failure(error: StorageError) -> bool:
    """Whether a request was not sent, because credentials could not be renewed; that may succeed later."""
    return isinstance(error.__cause__, StorageError)


def bare_option(name: str) -> str:
    """The name of a storage option without the cloud's prefix, which may be left out."""
    return _PREFIX.sub("", name)


def split_options(scheme: str, options: Mapping[str, str]) -> tuple[dict[str, str | None], dict[str, str]]:
    """The secrets in the options, in obstore's form, and other settings by one name each, without a cloud's prefix."""
    plain = {bare_option(name.lower()): value for name, value in options.items()}
    settings = {_ALIASES[scheme].get(name, name): value for name, value in plain.items()}
    return {name: settings.pop(option, None) for option, name in _SECRETS[scheme].items()}, settings


def _account_settings(account: str) -> dict[str, str]:
    """The settings in a service account's key, which is the content of a file and never the name of one."""
    try:
        url = json.loads(account).get("gcs_base_url")
    except (AttributeError, RecursionError, ValueError):
        raise AccessDeniedError("the service account key that was issued is not a JSON object; correct it") from None
    return {} if url is None else {"base_url": str(url)}


def _restore(
    scheme: str,
    uri: str,
    issuer: CredentialIssuer,
    issued: tuple[dict[str, str], float | None, float, str | None] | None,
) -> RenewedCredentials:
    if issued is None:
        return RenewedCredentials(scheme, uri, issuer, None)
    options, lifetime_s, expires_unix_s, refusal = issued
    if lifetime_s is not None:
        lifetime_s = min(lifetime_s, max(expires_unix_s - time.time(), 0.0))
    return RenewedCredentials(scheme, uri, issuer, Credentials(options, lifetime_s, refusal))

"""`penstock serve`."""

import shlex
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from penstock.catalog import Catalog
from penstock.cli._command import CommandContext, CommandResult, print_error
from penstock.cli._render import render_check
from penstock.errors import InvalidInputError

if TYPE_CHECKING:
    from penstock.server import Check


def serve(
    context: CommandContext,
    action: Annotated[
        Literal["check"] | None,
        typer.Argument(metavar="[check]", help="Check database, workspaces, storage and credentials, and exit."),
    ] = None,
    database: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar="PENSTOCK_DATABASE",
            help="postgresql://…, or a folder for SQLite. [default: a folder in PENSTOCK_HOME]",
        ),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="URI",
            help="Where new tables are: a folder, or s3://, gs:// or az:// with a path. "
            "[default: a folder in PENSTOCK_HOME]",
        ),
    ] = None,
    role_arn: Annotated[
        str | None, typer.Option(metavar="ARN", help="S3: the role to assume, with a policy for one table.")
    ] = None,
    allow_shared_credentials: Annotated[
        bool,
        typer.Option(
            "--allow-shared-credentials",
            help="Give clients credentials that reach all tables, where the store cannot narrow them.",
        ),
    ] = False,
    hierarchical: Annotated[
        bool,
        typer.Option("--hierarchical", help="Azure: the account has a hierarchical namespace, so tables are folders."),
    ] = False,
    location: Annotated[
        list[str] | None,
        typer.Option(metavar="URI", help="Another place whose tables may be registered; can be repeated."),
    ] = None,
    credential_lifetime: Annotated[float, typer.Option(metavar="SECONDS", help="Of the credentials.")] = 3600.0,
    retention_days: Annotated[float, typer.Option(metavar="DAYS", help="To restore dropped tables.")] = 7.0,
    host: Annotated[str, typer.Option(metavar="HOST", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="PORT", help="The port to listen on; 0 chooses one.")] = 7117,
    workers: Annotated[int, typer.Option(metavar="N", help="Processes.")] = 1,
    rate_limit: Annotated[
        float, typer.Option(metavar="N", help="Requests per second of one key to one process.")
    ] = 200.0,
    tls_cert: Annotated[str | None, typer.Option(metavar="FILE", help="Serve HTTPS with this certificate.")] = None,
    tls_key: Annotated[str | None, typer.Option(metavar="FILE", help="The key of the certificate.")] = None,
    new_admin_key: Annotated[
        bool, typer.Option("--new-admin-key", help="Make a further key of the server's admin, if the first is lost.")
    ] = False,
) -> CommandResult:
    """Serve managed tables to a team, until SIGTERM or Ctrl-C.

    Clients get the location of a table and short-lived credentials for it; data does not pass through the server. The
    first start writes the key of the server's admin to a file in PENSTOCK_HOME that only you can read. Without options,
    everything is in PENSTOCK_HOME. `penstock serve check`, with the same options, proves that they work.
    """
    from penstock import server

    home = Catalog().home / "server"
    config = server.ServerConfig(
        database=database or str(_folder(home) / "catalog"),
        storage=storage or str(_folder(home) / "tables"),
        options=context.storage_options,
        role_arn=role_arn,
        allow_shared_credentials=allow_shared_credentials,
        hierarchical=hierarchical,
        locations=tuple(location or ()),
        credential_lifetime_s=credential_lifetime,
        retention_days=retention_days,
        host=host,
        port=port,
        workers=workers,
        rate_limit=rate_limit,
        tls_cert=tls_cert,
        tls_key=tls_key,
    )
    if action == "check":
        return _check(context, server.check_server(config))
    if not config.is_private:
        print_error(
            f"keys and credentials pass {host} unencrypted; use --tls-cert and --tls-key, or a proxy with TLS",
            "Warning",
        )

    server.serve(
        config,
        lambda started: _announce(started.url, started.admin_key_file, narrow=started.narrow),
        admin_key_file=_folder(home) / "admin-key",
        new_admin_key=new_admin_key,
    )
    return CommandResult({"stopped": True}, [])


def _folder(path: Path) -> Path:
    """A folder that only its owner can read."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInputError(f"the folder {path} cannot be created ({error.strerror}); set PENSTOCK_HOME") from error
    return path


def _check(context: CommandContext, checks: Sequence["Check"]) -> CommandResult:
    redacted = [replace(check, detail=context.redact(check.detail)) for check in checks]
    ok = all(check.ok for check in redacted)
    lines = [render_check(check.name, check.detail, ok=check.ok) for check in redacted]
    return CommandResult({"ok": ok, "checks": [*map(asdict, redacted)]}, lines, ok)


def _announce(url: str, admin_key_file: Path | None, *, narrow: bool) -> None:
    """Tell where the server listens; what it prints may be in a journal that others read, so never the key."""
    if not narrow:
        print_error("clients get credentials that reach all tables (--allow-shared-credentials)", "Warning")
    if admin_key_file is not None:
        print(
            f"The key of the server's admin is in {admin_key_file}, which only you can read.\n"
            "Move it to a password manager. To begin:\n\n"
            f"    penstock login --url {url} < {shlex.quote(str(admin_key_file))}\n"
            "    penstock members set NAME writer\n"
            "    penstock keys create NAME\n"
        )
    print(f"Serving on {url}; the API is described at {url}/docs", flush=True)

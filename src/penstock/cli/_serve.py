"""`penstock serve`."""

from pathlib import Path
from typing import Annotated

import typer

from penstock.catalog import Catalog
from penstock.cli._command import CommandContext, CommandResult, print_error
from penstock.errors import InvalidInputError


def serve(
    context: CommandContext,
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
        bool, typer.Option("--new-admin-key", help="Print a further key of the server's admin, if the first is lost.")
    ] = False,
) -> CommandResult:
    """Serve managed tables to a team, until SIGTERM or Ctrl-C.

    Clients get the location of a table and short-lived credentials for it; data does not pass through the server. The
    first start prints the key of the server's admin, once; --new-admin-key prints a further one. Without options,
    everything is in PENSTOCK_HOME.
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
    if not config.is_private:
        print_error(
            f"keys and credentials pass {host} unencrypted; use --tls-cert and --tls-key, or a proxy with TLS",
            "Warning",
        )

    server.serve(
        config,
        lambda started: _announce(started.url, started.admin_key, narrow=started.narrow),
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


def _announce(url: str, admin_key: str | None, *, narrow: bool) -> None:
    """Tell where the server listens; the key is printed here and never again."""
    if not narrow:
        print_error("clients get credentials that reach all tables (--allow-shared-credentials)", "Warning")
    if admin_key is not None:
        print(
            f"The key of the server's admin, which is shown only now:\n\n    {admin_key}\n\n"
            "Store it in a password manager. Then, on a client:\n\n"
            f"    penstock login --url {url}\n"
            "    penstock members set NAME writer\n"
            "    penstock keys create NAME\n"
        )
    print(f"Serving on {url}; the API is described at {url}/docs", flush=True)

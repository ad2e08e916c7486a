"""`penstock serve`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from penstock.catalog import Catalog
from penstock.cli._command import CommandContext, CommandResult, print_error
from penstock.errors import InvalidInputError

_DAY_S = 86_400


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
) -> CommandResult:
    """Serve managed tables to a team, until SIGTERM or Ctrl-C.

    Clients get the location of a table and short-lived credentials for it; data does not pass through the server. The
    first start prints the key of the server's admin, once. Without options, everything is in PENSTOCK_HOME.
    """
    server = _server()
    home = Catalog().home / "server"
    config = server.ServerConfig(
        database=database or str(_folder(home) / "catalog"),
        storage=storage or str(_folder(home) / "tables"),
        options=context.storage_options,
        role_arn=role_arn,
        allow_shared_credentials=allow_shared_credentials,
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
            f"keys and credentials pass {host} unencrypted; use --tls-cert and --tls-key, or a proxy with TLS", "Warning"
        )

    def announce(started: server.Started) -> None:
        _announce(started.url, started.admin_key, narrow=started.narrow)

    server.serve(config, announce)
    return CommandResult({"stopped": True}, [])

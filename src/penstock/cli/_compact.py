"""`penstock compact`."""

import penstock
from penstock.cli._command import CommandContext, CommandResult, Uri
from penstock.cli._render import format_bytes, pluralize
from penstock.cli._versions import Branch, Message


def compact(context: CommandContext, uri: Uri, branch: Branch = None, message: Message = "") -> CommandResult:
    """Join small fragments and drop deleted rows, as a new commit; rows, their order and row ids stay the same.

    Older versions keep their files until `penstock vacuum`.
    """
    dataset = penstock.load(uri, branch=branch, storage_options=context.storage_options)
    before = dataset.summary()
    context.status = lambda: f"compacting the fragments of {before.version}"
    name = dataset.version.rpartition("@")[0]
    penstock.compact(uri, branch=name, message=message, storage_options=context.storage_options)
    after = dataset.checkout().summary()
    document = {
        "uri": dataset.uri,
        "version": after.version,
        "compacted": after.version != before.version,
        "rows": after.rows,
        "before": {"version": before.version, "fragments": before.fragments, "bytes": before.bytes},
        "after": {"version": after.version, "fragments": after.fragments, "bytes": after.bytes},
    }
    if after.version == before.version:
        line = f"{before.version} needs no compaction: {pluralize(before.fragments, 'fragment')}."
    else:
        line = f"{after.version}: compacted {pluralize(before.fragments, 'fragment')} ({format_bytes(before.bytes)})"
        line += f" into {pluralize(after.fragments, 'fragment')} ({format_bytes(after.bytes)})."
    return CommandResult(document, [line])

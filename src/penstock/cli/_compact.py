"""`penstock compact`."""

import penstock
from penstock.cli._show import amount, count
from penstock.cli._verb import Answer, Run, Uri
from penstock.cli._versions import Branch, Message


def compact(run: Run, uri: Uri, branch: Branch = None, message: Message = "") -> Answer:
    """Join small fragments and leave deleted rows out, as a new commit; rows, their order and ids stay.

    Older versions keep what they have until `penstock vacuum`.
    """
    dataset = penstock.load(uri, branch=branch, options=run.options)
    before = dataset.summary()
    run.doing = lambda: f"joining the fragments of {before.version}"
    dataset.compact(message)
    after = dataset.summary()
    document = {
        "uri": dataset.uri,
        "version": after.version,
        "compacted": after.version != before.version,
        "rows": after.rows,
        "before": {"version": before.version, "fragments": before.fragments, "bytes": before.bytes},
        "after": {"version": after.version, "fragments": after.fragments, "bytes": after.bytes},
    }
    if after.version == before.version:
        return Answer(document, [f"{before.version} is well as it is: {count(before.fragments, 'fragment')}."])
    line = f"{count(before.fragments, 'fragment')}, {amount(before.bytes)}, are now "
    line += f"{count(after.fragments, 'fragment')}, {amount(after.bytes)}: {after.version}."
    return Answer(document, [line])

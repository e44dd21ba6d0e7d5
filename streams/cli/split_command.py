"""``weft split``: the number of buckets, while the table is being written."""

from __future__ import annotations

from typing import Annotated

import typer

from storage.engine import plan_split
from storage.plural import counted
from streams.cli.arguments import (
    Concurrency,
    Json,
    Memory,
    StorageOption,
    Target,
    load_target,
    open_location,
    override,
    usage_errors,
)
from streams.cli.examples import examples
from streams.cli.output import print_result
from streams.cli.progress import finish_shown
from streams.pipeline.model import CompactionSection
from streams.pipeline.services import COMPACTION

splitting = typer.Typer()


@splitting.command(
    epilog=examples("weft split lake/orders_wide --buckets 32", "weft split pipeline.yaml --buckets 16 --concurrency 4")
)
def split(
    target: Target,
    buckets: Annotated[int, typer.Option(help="The number of buckets: a power of two. Fewer are merged.")],
    concurrency: Concurrency = None,
    memory: Memory = None,
    storage_option: StorageOption = None,
    as_json: Json = False,
) -> None:
    """Change the number of buckets while writers and readers go on: rewrites each file group once.

    Each file group is complete in itself: run it again after a failure, or let compactions go on. Writers that know
    the old number need not be restarted.
    """
    settings = load_target(target, storage_option, COMPACTION)
    with usage_errors():
        here = override(settings.compaction or CompactionSection(), {"concurrency": concurrency, "memory": memory})
    table = open_location(settings.table)
    with usage_errors():
        work = plan_split(table, buckets, here.execute)
    result = finish_shown("splitting", work, quiet=as_json)
    changed = f"{result.before} to {result.buckets} buckets" if result.before != buckets else f"{buckets} buckets"
    text = (
        f"{changed}: {counted(result.file_groups, 'new file group')}, {result.rows:,} rows, "
        f"{result.bytes_read / 1e6:.1f} MB read, {result.bytes_written / 1e6:.1f} MB written in {result.seconds:.1f} s"
    )
    print_result(result, text, as_json=as_json)

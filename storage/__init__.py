"""weft's table format: log, protocol and merge kernel, without Spark. Start reading at `storage.table`."""

from storage.config.table_config import TableConfig
from storage.core.plan.due_policy import DuePolicy
from storage.read.snapshot import Snapshot
from storage.services.verify.verify import verify_table
from storage.table import Table
from storage.write.writer import Commit, Writer

__all__ = ["Commit", "DuePolicy", "Snapshot", "Table", "TableConfig", "Writer", "verify_table"]

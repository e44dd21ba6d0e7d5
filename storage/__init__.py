"""weft's table format: log, protocol and merge kernel, without Spark. Start reading at `weft.storage.table`."""

if __name__ == "storage":  # by its old name, from a checkout
    from weft import old_names

    old_names.replace(__name__)

from weft.storage.config.table_config import TableConfig
from weft.storage.core.plan.due_policy import DuePolicy
from weft.storage.read.snapshot import Snapshot
from weft.storage.services.verify.verify import verify_table
from weft.storage.table import Table
from weft.storage.write.writer import Commit, Writer

__all__ = ["Commit", "DuePolicy", "Snapshot", "Table", "TableConfig", "Writer", "verify_table"]

"""Runs several tasks of a service at the same time, in threads of this process, within a limit of memory.

Reading, merging and writing release Python's global lock for most of their time. Each task estimates its memory
(`weft.storage.services.steps.tasks.Task.memory_bytes`). A task begins when it fits beside the running tasks. A task
that is larger than the limit runs alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeVar

from weft.storage.errors import InvalidInput
from weft.storage.services.steps.tasks import Execute, Task, one_by_one

T = TypeVar("T")


def in_threads(threads: int, memory_bytes: int | None = None) -> Execute:
    """An `Execute` that runs several tasks at the same time.

    If a task fails, no other task begins, and the running ones are awaited. Files of tasks whose results are not used
    are garbage, which cleaning deletes.

    Args:
        threads: Maximum number of tasks at the same time.
        memory_bytes: Limit of the memory that they need together; None: no limit.

    Raises:
        InvalidInput: A number is not positive.
    """
    if threads < 1 or (memory_bytes is not None and memory_bytes < 1):
        raise InvalidInput(
            f"{threads} tasks in {memory_bytes} bytes of memory cannot run", hint="give positive numbers"
        )
    if threads == 1:
        return one_by_one

    def execute(tasks: Iterable[Task[T]], /) -> Iterator[T]:
        source = iter(tasks)
        submitted_tasks: deque[tuple[Future[T], int]] = deque()
        next_task: Task[T] | None = None
        pool = ThreadPoolExecutor(threads, thread_name_prefix="weft-task")
        try:
            while True:
                while submitted_tasks and submitted_tasks[0][0].done():
                    yield submitted_tasks.popleft()[0].result()
                running = {future: task_bytes for future, task_bytes in submitted_tasks if not future.done()}
                has_failed = any(
                    future not in running and future.exception() is not None for future, _ in submitted_tasks
                )
                while len(running) < threads and not has_failed:
                    if next_task is None:
                        next_task = next(source, None)
                    if next_task is None:
                        break
                    task_bytes = next_task.memory_bytes
                    if running and memory_bytes is not None and task_bytes + sum(running.values()) > memory_bytes:
                        break
                    future = pool.submit(next_task.run)
                    submitted_tasks.append((future, task_bytes))
                    running[future] = task_bytes
                    next_task = None
                if not submitted_tasks:
                    return
                # Wait for any task, so that a slow one does not delay the start of further tasks.
                wait(running, return_when=FIRST_COMPLETED)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    return execute

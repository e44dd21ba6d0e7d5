"""Runs tasks of services as other processes would: pickles tasks and results, and runs the last tasks first."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import TypeVar

from weft.storage.services.steps.tasks import Task

T = TypeVar("T")


def elsewhere(tasks: Iterable[Task[T]], /) -> Iterable[T]:
    results = [pickle.dumps(pickle.loads(sent).run()) for sent in reversed([pickle.dumps(task) for task in tasks])]
    return [pickle.loads(result) for result in reversed(results)]

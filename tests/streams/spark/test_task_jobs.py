"""How tasks of a service are divided into Spark jobs. Without Spark."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from weft.streams.spark.task_jobs import BUNDLE_BYTES, JOB_BYTES_PER_CORE, MAX_TASKS, MIB, TASK_BYTES, plan_jobs

SIZES = st.lists(st.one_of(st.integers(0, 4 * MIB), st.integers(0, 2 * JOB_BYTES_PER_CORE)), max_size=60)


@given(SIZES, st.integers(1, 8))
def test_every_task_is_in_one_bundle_and_jobs_follow_each_other(sizes: list[int], cores: int) -> None:
    jobs = plan_jobs(sizes, cores)
    found = [sorted(position for bundle in job for position in bundle) for job in jobs]
    assert [position for job in found for position in job] == list(range(len(sizes)))
    assert all(bundle == sorted(bundle) and bundle for job in jobs for bundle in job)


@given(SIZES, st.integers(1, 8))
def test_jobs_and_bundles_are_bounded(sizes: list[int], cores: int) -> None:
    for job in plan_jobs(sizes, cores):
        costs = [sum(sizes[position] + TASK_BYTES for position in bundle) for bundle in job]
        assert costs == sorted(costs, reverse=True)
        last = max(position for bundle in job for position in bundle)
        assert sum(costs) - sizes[last] - TASK_BYTES < JOB_BYTES_PER_CORE * cores
        for bundle, cost in zip(job, costs, strict=True):
            assert len(bundle) == 1 or cost < 2 * BUNDLE_BYTES


def test_small_tasks_are_bundled_and_large_ones_begin_first() -> None:
    (job,) = plan_jobs([0] * 1_000 + [64 * MIB, 100 * MIB], cores=4)
    assert job[:2] == [[1_001], [1_000]]
    assert 4 <= len(job) <= 20


def test_a_few_small_tasks_use_all_cores() -> None:
    (job,) = plan_jobs([MIB] * 8, cores=4)
    assert job == [[i] for i in range(8)]


def test_a_job_has_a_limited_number_of_tasks() -> None:
    jobs = plan_jobs([0] * (2 * MAX_TASKS + 1), cores=1_000)
    assert [sum(map(len, job)) for job in jobs] == [MAX_TASKS, MAX_TASKS, 1]

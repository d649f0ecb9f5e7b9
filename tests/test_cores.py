"""Cores of a process: those that it may run on, and no more than its quota pays for."""

import os
import sys

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from rknn_jax._internal import cores

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="quotas are those of Linux")


@pytest.mark.parametrize(
    ("files", "groups", "expected"),
    [
        ({}, "", 8),
        ({"cpu.max": "max 100000"}, "0::/", 8),
        ({"cpu.max": "200000 100000"}, "0::/", 2),
        ({"cpu.max": "250000 100000"}, "0::/", 3),
        ({"cpu.max": "1000 100000"}, "0::/", 1),
        ({"cpu.max": "9900000 100000"}, "0::/", 8),
        ({"a/cpu.max": "max 100000", "a/b/cpu.max": "300000 100000"}, "0::/a/b", 3),
        ({"a/cpu.max": "200000 100000", "a/b/cpu.max": "300000 100000"}, "0::/a/b", 2),
        ({"a/cpu.max": "200000 100000"}, "0::/other", 8),
        ({"a/cpu.max": "200000 100000"}, "0::/../a", 8),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "3:cpu:/", 8),
        ({"cpu/cpu.cfs_quota_us": "150000", "cpu/cpu.cfs_period_us": "100000"}, "3:cpu:/", 2),
        (
            {"cpu/x/cpu.cfs_quota_us": "400000", "cpu/x/cpu.cfs_period_us": "100000"},
            "4:memory:/y\n3:cpu,cpuacct:/x",
            4,
        ),
        ({"cpu.max": "garbage"}, "0::/", 8),
    ],
)
def test_a_quota_bounds_the_cores(tmp_path, monkeypatch, files, groups, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "membership").write_text(groups)
    monkeypatch.setattr(cores, "CGROUPS", tmp_path)
    monkeypatch.setattr(cores, "MEMBERSHIP", tmp_path / "membership")
    assert cores.num_cores() == expected


def test_the_affinity_bounds_the_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert cores.num_cores() == 1


def test_products_have_one_thread_until_the_last_who_asked_has_left():
    """NumPy's and SciPy's libraries, whichever was loaded first."""

    def threads():
        found = threadpool_info()
        return [one["num_threads"] for one in found if one["user_api"] == "blas"]

    with threadpool_limits(2, user_api="blas"):
        assert len(before := threads()) >= 2
        with cores.one_thread_for_products(asked=False):
            assert threads() == before
        first, second = cores.one_thread_for_products(), cores.one_thread_for_products()
        with second:
            with first:
                assert set(threads()) == {1}
            assert set(threads()) == {1}
        assert threads() == before
        first, second = cores.one_thread_for_products(), cores.one_thread_for_products()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert set(threads()) == {1}
        second.__exit__(None, None, None)
        assert threads() == before

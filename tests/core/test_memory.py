import os

import pytest
import torch

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.devices.memory import free_memory

GB = 10**9


@pytest.fixture
def system(tmp_path):
    """Return a function that writes the files a system describes itself with."""

    def write(files, available=16 * GB):
        if available is not None:
            files = {"proc/meminfo": f"MemTotal: 9\nMemAvailable:  {available // 1024} kB"} | files
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")
        return tmp_path

    return write


def unified(folder, most, used, cached=0):
    stat = f"anon 5\nactive_file {cached // 4}\ninactive_file {cached - cached // 4}\nshmem 7"
    place = f"sys/fs/cgroup/{folder}"
    return {
        f"{place}/memory.max": most,
        f"{place}/memory.current": used,
        f"{place}/memory.stat": stat,
    }


def old(folder, most, used, cached=0):
    place = f"sys/fs/cgroup/memory/{folder}"
    return {
        f"{place}/memory.limit_in_bytes": most,
        f"{place}/memory.usage_in_bytes": used,
        f"{place}/memory.stat": f"inactive_file 1\ntotal_inactive_file {cached}",
    }


def test_a_system_without_limits_has_what_it_says(system):
    assert free_memory(root=system({})) == 16 * GB // 1024 * 1024


def test_the_limit_of_a_container_counts(system):
    files = {"proc/self/cgroup": "0::/"} | unified("", 4 * GB, 3 * GB, cached=GB)
    assert free_memory(root=system(files)) == 2 * GB


def test_the_tightest_group_above_the_process_counts(system):
    files = {"proc/self/cgroup": "0::/user/job/step"}
    files |= unified("user/job/step", "max", GB)
    files |= unified("user/job", 3 * GB, 2 * GB) | unified("user", 8 * GB, GB)
    assert free_memory(root=system(files)) == GB


def test_groups_of_the_first_version(system):
    files = {"proc/self/cgroup": "5:cpu:/\n4:cpuset,memory:/docker/af31\n0::/"}
    files |= old("", 6 * GB, 2 * GB, cached=GB)  # the container sees its own group as the root
    assert free_memory(root=system(files)) == 5 * GB


def test_a_limit_above_what_is_there_changes_nothing(system):
    files = {"proc/self/cgroup": "4:memory:/"} | old("", 2**63 - 4096, GB)
    assert free_memory(root=system(files, available=2 * 1024**3)) == 2 * 1024**3


def test_a_group_over_its_limit_leaves_nothing(system):
    files = {"proc/self/cgroup": "0::/"} | unified("", GB, 2 * GB)
    assert free_memory(root=system(files)) == 0


def test_without_proc_pages_are_counted(system, monkeypatch):
    answers = {"SC_AVPHYS_PAGES": 100, "SC_PHYS_PAGES": 500, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(os, "sysconf", answers.__getitem__)
    empty = system({}, available=None)
    assert free_memory(root=empty) == 100 * 4096
    monkeypatch.setattr(os, "sysconf_names", {"SC_PHYS_PAGES": 1})
    assert free_memory(root=empty) == 250 * 4096
    monkeypatch.setattr(os, "sysconf_names", {})
    with pytest.raises(ArgumentError, match="Give memory="):
        free_memory(root=empty)


def test_this_machine_has_some():
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < free_memory(torch.device("cpu")) <= total


def test_an_accelerator_is_asked_itself(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (7 * GB, 8 * GB))
    assert free_memory("cuda") == 7 * GB

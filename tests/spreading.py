"""How ``make test`` spreads the suite over worker processes: a file is one worker's, and long ones are begun first.

Most tests wait, for containers to start or for limits to pass, so a few workers are done sooner than one although there are but
two processors. What can't bear company is run by one process afterwards.
"""

from __future__ import annotations

import pytest
from xdist.scheduler import LoadScopeScheduling

ALONE = (
    "tests/attacks/test_host_stays_sound.py",  # how much slower the host's answers are than in quiet
    "tests/cluster/",  # several hosts, each with a name and ports of its own
    "tests/conformance/",  # as many flows at once as the machine can bear already
    "tests/docker/test_recovery.py",  # within five seconds; and it looks for a process that other tests have too
    "tests/isolation/test_userns.py",  # an engine of its own
    "tests/lifecycle/test_capacity.py",  # 200 sessions
    "tests/lifecycle/test_deaths.py",  # within two seconds
    "tests/lifecycle/test_engine_restart.py",  # an engine of its own
    "tests/lifecycle/test_soak.py",  # what a process grows by
    "tests/strangers/test_conformance.py",  # as conformance
    "tests/strangers/test_misdeeds.py",  # everything at once, and in time
    "tests/ui/test_thousand.py",  # a thousand sessions, and in time
)
"""Files and folders whose tests measure time that the work of others would be in, or keep the machine busy by themselves."""

LONG = (
    "tests/bench/test_run.py",
    "tests/docker/test_clients.py",
    "tests/lifecycle/test_engine_faults.py",
    "tests/attacks/test_environment_frames.py",
    "tests/attacks/test_agent_harms.py",
    "tests/isolation/test_profiles.py",
    "tests/docker/test_authoring.py",
    "tests/docker/test_faults.py",
    "tests/attacks/test_agent_memory.py",
    "tests/strangers/test_shut_in.py",
    "tests/docker/test_dialects.py",
    "tests/images/test_build_docker.py",
    "tests/strangers/test_starts.py",
    "tests/strangers/test_node_env.py",
    "tests/lifecycle/test_catalog.py",
    "tests/ui/test_accessibility.py",
)
"""Files that take long, the longest first: were one of them the last to be begun, all would wait for it."""

_ONE_AGENT = ("tests/runtime/test_shell.py", "tests/runtime/test_spawning.py")
"""They end all processes of one user, who is the same in both."""


class Spreading(LoadScopeScheduling):  # type: ignore[misc]
    """Hands out files, in the order of the collection (``--no-loadscope-reorder``)."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return _ONE_AGENT[0] if file in _ONE_AGENT else file


def mark_and_sort(items: list[pytest.Item], *, sort: bool) -> None:
    """Mark those that are to be run alone; put the long ones first if workers are to take them."""
    for item in items:
        if item.nodeid.startswith(ALONE):
            item.add_marker("alone")
    if sort:
        items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    file = item.nodeid.partition("::")[0]
    return LONG.index(file) if file in LONG else len(LONG)

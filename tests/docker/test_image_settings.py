"""A host with a file: each image's containers have what is said of it, else what is said of all."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from host import docker_client
from host.build import build_environment
from tests.docker.harness import RunningHost, running_host

MIB = 1024**2
SECOND = "ors-host-test-second:latest"
SECRET = "hunter2-judge"


@pytest.fixture(scope="module")
def host(probe_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHost]:
    folder = tmp_path_factory.mktemp("images")
    ors_host = Path(sys.executable).with_name("ors-host")
    subprocess.run([ors_host, "init", folder / "second"], check=True, capture_output=True)
    build_environment(folder / "second", SECOND)
    (folder / "judge").write_text(SECRET)
    (folder / "data").mkdir(mode=0o755)
    folder.chmod(0o755)
    config = folder / "ors-host.toml"
    config.write_text(f"""
memory = "512MiB"
network = "internet"
warm = 1

[image."{probe_image}"]
pids = 77

[image."{probe_image}".secrets]
JUDGE = "{folder}/judge"

[image."{SECOND}"]
memory = "200MiB"
cpus = 0.5
network = "none"
isolation = "strict"
workspace_size = "16MiB"
tmp_size = "16MiB"
data = "{folder}/data"
warm = 0

[image."{SECOND}".environment]
LEVEL = "3"
""")
    try:
        with running_host(config=config) as host:
            yield host
    finally:
        with closing(docker_client.connect()) as client:
            client.remove_image(SECOND, force=True)


def has(host: RunningHost, sid: str) -> dict[str, Any]:
    """What a session's container was made with."""
    (container,) = [c for c in host.containers() if c["Labels"]["ors-host.sandbox"] == sandbox_of(host, sid)]
    with closing(docker_client.connect()) as client:
        data: dict[str, Any] = client.inspect_container(container["Id"])
        return data


def sandbox_of(host: RunningHost, sid: str) -> str:
    (found,) = [
        path.name for path in (host.state_dir / "sessions").iterdir() if json.loads(path.read_text())["session"] == sid
    ]
    return found


async def test_each_image_has_its_own(host: RunningHost) -> None:
    async with host.client() as client:
        probe = await client.create(env_name="probe", secrets={"MINE": "1"})
        second = await client.create({"id": "hello"}, env_name="second")
        mine, other = has(host, probe.sid), has(host, second.sid)

        assert mine["HostConfig"]["Memory"] == 512 * MIB and other["HostConfig"]["Memory"] == 200 * MIB
        assert other["HostConfig"]["NanoCpus"] == 500_000_000
        assert mine["HostConfig"]["PidsLimit"] == 77 and other["HostConfig"]["PidsLimit"] == 256
        assert not mine["HostConfig"]["ReadonlyRootfs"] and other["HostConfig"]["ReadonlyRootfs"]
        places = [{mount["Destination"] for mount in each["Mounts"]} for each in (mine, other)]
        assert places == [{"/run/ors", "/run/ors-net"}, {"/run/ors", "/opt/orwd/data"}]
        assert "LEVEL=3" in other["Config"]["Env"] and "LEVEL=3" not in mine["Config"]["Env"]

        assert (await probe.call("secret")).text == f"JUDGE={SECRET} MINE=1"
        assert SECRET not in json.dumps([mine, other]) and SECRET not in host.log
        await probe.delete()
        await second.delete()


async def test_only_the_image_that_says_so_waits(host: RunningHost) -> None:
    waiting = [
        container["Labels"]["ors-host.image"]
        for container in host.containers(role="session")
        if not (host.state_dir / "sessions" / container["Labels"]["ors-host.sandbox"]).exists()
    ]
    assert SECOND not in waiting

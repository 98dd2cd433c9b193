"""How a session's container is made, read back from the engine."""

from __future__ import annotations

import json

from tests.docker.harness import Client, RunningHost


async def test_the_container_is_shut_in(host: RunningHost, client: Client) -> None:
    session = await client.create()
    data = host.inspect(session.sid)
    limits = data["HostConfig"]
    assert limits["NetworkMode"] == "none"
    assert limits["CapDrop"] == ["ALL"]
    assert sorted(limits["CapAdd"]) == ["KILL", "SETGID", "SETUID"]
    assert limits["SecurityOpt"] == ["no-new-privileges:true"]
    assert limits["Init"] is True
    assert limits["RestartPolicy"]["Name"] == "no"
    assert limits["Memory"] == limits["MemorySwap"] == 512 * 1024**2
    assert limits["NanoCpus"] == 1_000_000_000
    assert limits["PidsLimit"] == 256
    assert "size=" in limits["Tmpfs"]["/tmp"]
    assert limits["LogConfig"]["Config"]["max-size"]
    assert not limits["Privileged"]
    mounts = [(mount["Destination"], mount["RW"]) for mount in data["Mounts"]]
    assert mounts == [("/run/ors", False)]
    assert data["Config"]["Labels"]["ors-host.server"] == host.server_id
    await session.delete()


async def test_nothing_worth_stealing_is_in_its_metadata(host: RunningHost, client: Client) -> None:
    session = await client.create({"answer": "42-is-the-answer"}, secrets={"api_key": "sk-very-secret"})
    assert (await session.call("secret")).text == "api_key=sk-very-secret"
    metadata = json.dumps(host.inspect(session.sid))
    assert "sk-very-secret" not in metadata
    assert "42-is-the-answer" not in metadata
    token = next(host.state_dir.glob("s/*/token")).read_text()
    assert token not in metadata
    await session.delete()
    assert "sk-very-secret" not in host.log
    assert "42-is-the-answer" not in host.log


async def test_the_catalog_and_the_sessions_agree_on_hashes(client: Client) -> None:
    """Hazard 1 and 2 of compat.md: tasks are listed in one process and played in another."""
    async with client.http.post("/probe/tasks", json={"split": "train"}) as response:
        tasks = (await response.json())["tasks"]
    session = await client.create(tasks[3])
    seed = await session.bash("cat /proc/1/environ 2>&1; env")
    assert "PYTHONHASHSEED" not in seed  # the agent's own programs keep their random seeds
    await session.delete()
    async with client.http.post("/probe/task", json={"split": "train", "index": 3}) as response:
        assert (await response.json())["task"] == tasks[3]


async def test_the_agent_sees_nothing_of_the_environment(client: Client) -> None:
    session = await client.create({"answer": "the-answer"}, secrets={"key": "the-secret"})
    attempts = {
        "cat /opt/env/env.py": "Permission denied",
        "ls /run/ors": "Permission denied",
        "cat /run/ors/token": "Permission denied",
        "cat /proc/1/environ": "Permission denied",
        "for p in /proc/[0-9]*; do cat $p/environ 2>/dev/null | tr '\\0' '\\n' | grep ORS_; done; echo none": "none",
        "id -u": "10000",
        "cat /proc/self/status | grep -E 'CapEff|CapPrm|NoNewPrivs'": "CapPrm:\t0000000000000000",
        "cat /proc/self/oom_score_adj": "1000",
        "(echo > /dev/tcp/127.0.0.1/80) 2>&1; ls /sys/class/net": "lo",
        "kill -9 1 2>&1; kill -STOP -1; echo still": "still",
        "touch /usr/local/bin/python /opt/x 2>&1": "Permission denied",
        "env": "HOME=/home/agent",
    }
    for command, expected in attempts.items():
        output = await session.bash(command + " 2>&1")
        assert expected in output, (command, output)
        assert "the-answer" not in output and "the-secret" not in output
    await session.delete()


async def test_the_agent_cannot_speak_on_the_socket(client: Client) -> None:
    session = await client.create()
    program = "import socket; s = socket.socket(socket.AF_UNIX); s.connect('/run/ors/host.sock')"
    assert "PermissionError" in await session.bash(f'python3 -c "{program}" 2>&1')
    assert (await session.call("count")).text == "1"
    await session.delete()


async def test_no_descriptor_is_inherited(client: Client) -> None:
    session = await client.create()
    descriptors = (await session.bash("ls -l /proc/self/fd | awk '{print $9, $11}'")).split("\n")
    assert not [line for line in descriptors if "socket" in line or "memfd" in line], descriptors
    await session.delete()

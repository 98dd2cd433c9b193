"""What holds for one image: what is said of it, else what is said of all. Secrets from files, and a client's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ByteSize

from host.errors import StartupError
from host.isolation import Profile
from host.rules import Rules
from host.settings import ImageSettings, Settings

MIB = 1024**2


def rules(section: ImageSettings, **settings: object) -> Rules:
    return Rules.of(Settings(image=("a",), images={"a": section}, **settings), "a", remapped=False)  # type: ignore[arg-type]


def test_what_is_said_of_the_image_counts_more() -> None:
    section = ImageSettings(
        memory=ByteSize(100 * MIB), pids=7, disk=ByteSize(MIB), isolation=Profile.STRICT, warm=0, network="none"
    )
    settings = Settings(image=("a", "b"), images={"a": section}, network="internet", cpus=3, inodes=99)
    a, b = (Rules.of(settings, tag, remapped=False) for tag in "ab")
    assert (a.limits.memory_bytes, a.limits.cpus, a.confinement.pids, a.warm) == (100 * MIB, 3, 7, 0)
    assert (a.usage.bytes_, a.usage.inodes, a.egress, a.confinement.read_only_root) == (MIB, 99, None, True)
    assert (b.limits.memory_bytes, b.warm, b.confinement.read_only_root) == (settings.memory, settings.warm, False)
    assert b.egress is not None and b.egress.allowed is None


def test_secrets_come_from_files_and_a_clients_own_count_more(tmp_path: Path) -> None:
    (tmp_path / "judge").write_text("from a file\n")
    found = rules(ImageSettings(secrets={"JUDGE": tmp_path / "judge"}))
    assert found.with_secrets({}) == {"JUDGE": "from a file"}
    assert found.with_secrets({"JUDGE": "mine", "OTHER": ""}) == {"JUDGE": "mine", "OTHER": ""}
    assert found.with_secrets({"JUDGE": ""}) == {"JUDGE": "from a file"}
    assert "from a file" not in repr(found)


@pytest.mark.parametrize("content", [None, b"\xff", b"x" * 70_000])
def test_a_secret_that_cannot_be_had(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "judge").write_bytes(content)
    with pytest.raises(StartupError, match="the secret JUDGE .*judge") as caught:
        rules(ImageSettings(secrets={"JUDGE": tmp_path / "judge"}))
    assert "xxx" not in str(caught.value)

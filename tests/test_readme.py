"""What the README says of the settings is what the settings are. ``python -m tests.test_readme`` writes the table anew."""

from __future__ import annotations

from pathlib import Path

from pydantic import ByteSize

from host.config import flag
from host.settings import OPTIONS

README = Path(__file__).parent.parent / "README.md"
START = "<!-- settings table: kept equal to host/settings.py by tests/test_readme.py -->\n"
END = "<!-- end of settings table -->\n"


def table() -> str:
    lines = ["| flag | default | what |", "|---|---|---|"]
    for name, field in OPTIONS.items():
        default = field.get_default(call_default_factory=True)
        if isinstance(default, ByteSize):
            default = default.human_readable()
        shown = "" if default == () else f"{default}"
        if name == "state_dir":
            shown = "`/var/lib/ors-host` (root) or `~/.local/state/ors-host`"
        lines.append(f"| `{flag(name)}` | {shown} | {field.description} |")
    return "\n".join(lines) + "\n"


def test_the_settings_table_is_true() -> None:
    text = README.read_text()
    assert text.partition(START)[2].partition(END)[0] == table()


def test_every_setting_has_a_description() -> None:
    assert [name for name, field in OPTIONS.items() if not field.description] == []


if __name__ == "__main__":
    before, _, rest = README.read_text().partition(START)
    README.write_text(before + START + table() + END + rest.partition(END)[2])

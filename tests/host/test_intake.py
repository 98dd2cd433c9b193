"""How much all peers together may have sent of what they have not finished, and who goes when that is too much."""

from __future__ import annotations

from host.intake import Intake


def test_what_is_held_is_the_sum_of_what_each_holds_now() -> None:
    intake = Intake(max_held_bytes=100)
    evicted: list[str] = []
    for key, size in (("a", 10), ("b", 20), ("a", 30), ("b", 0), ("nobody", 0), ("a", 15)):
        intake.hold(key, size, lambda key=key: evicted.append(key))  # type: ignore[misc]
    assert intake.held_bytes == 15
    intake.hold("a", 0, lambda: evicted.append("a"))
    assert intake.held_bytes == 0
    assert evicted == []


def test_the_longest_waiting_go_until_there_is_room() -> None:
    intake = Intake(max_held_bytes=100)
    evicted: list[str] = []
    for key, size in (("first", 40), ("second", 30), ("third", 30), ("first", 45), ("fourth", 60)):
        intake.hold(key, size, lambda key=key: evicted.append(key))  # type: ignore[misc]
    # "first" was there before the others, however often it has grown: it goes with its 45; then "second" has to go too.
    assert evicted == ["first", "second"]
    assert intake.held_bytes == 90


def test_who_has_too_much_alone_goes_itself() -> None:
    intake = Intake(max_held_bytes=100)
    evicted: list[str] = []
    intake.hold("small", 10, lambda: evicted.append("small"))
    intake.hold("huge", 101, lambda: evicted.append("huge"))
    assert evicted == ["small", "huge"]
    assert intake.held_bytes == 0

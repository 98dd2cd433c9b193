"""Which SDK a class is written for: told by its base classes, so that no SDK need be installed but the one it uses."""

from __future__ import annotations

from importlib import import_module

from .served import ServedClass

_OURS = __name__.partition(".")[0]
_SDKS = {"ors": ("ors_sdk", "OrsClass"), "openreward": ("openreward_sdk", "OpenRewardClass")}
"""The modules that know them, imported only for who uses one."""

DISTRIBUTIONS = {"ors": "ors-sdk", "openreward": "openreward"}
"""What to install for ``import`` of each SDK."""


def is_environment(value: object) -> bool:
    """True for a subclass of an ``Environment`` of any SDK; the SDKs' own base classes are none."""
    return isinstance(value, type) and _base(value) not in (None, value)


def serve(cls: type) -> ServedClass:
    """Return the class as the rest of the runtime sees it.

    Raises:
        TypeError: it is no environment.
    """
    base = _base(cls)
    if base is None:
        raise TypeError(f"{cls.__qualname__} is no environment")
    sdk = _SDKS.get(base.__module__.partition(".")[0])
    if sdk is None:
        return ServedClass(cls)
    module, name = sdk
    served: ServedClass = getattr(import_module(f".{module}", __package__), name)(cls, base)
    return served


def _base(cls: type) -> type | None:
    for base in cls.__mro__:
        if base.__qualname__ == "Environment" and base.__module__.partition(".")[0] in (_OURS, *_SDKS):
            return base
    return None

"""What a host tells Prometheus of itself: counted where it happens, and looked at when it is asked.

Every label has few values: environments, states, reasons, outcomes; no session's id. Times are in seconds, sizes in bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

Start = Literal["warm", "cold", "adopted"]
Look = Callable[[], float | Mapping[str, float]]

_CREATION_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_CALL_S = (0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1, 5, 15, 60, 300, 1800, 3600)
_ENGINE_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """The metrics of one host, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._creations = Histogram(
            "ors_host_session_creation_seconds",
            "From the request for a session to its environment's construction.",
            ["environment", "start"],
            buckets=_CREATION_S,
            registry=registry,
        )
        self._ends = Counter(
            "ors_host_sessions_ended", "Sessions that ended, or could not be made.", ["reason"], registry=registry
        )
        self._calls = Histogram(
            "ors_host_call_seconds",
            "Tool calls, from their request to their outcome.",
            ["environment", "outcome"],
            buckets=_CALL_S,
            registry=registry,
        )
        self._engine = Histogram(
            "ors_host_engine_request_seconds",
            "Requests to the container engine.",
            ["request", "outcome"],
            buckets=_ENGINE_S,
            registry=registry,
        )
        self._warm_deaths = Counter(
            "ors_host_warm_containers_lost",
            "Containers started beforehand that died, or did not start.",
            ["image"],
            registry=registry,
        )

    def session_created(self, environment: str, start: Start, seconds: float) -> None:
        """Count a session whose environment is constructed."""
        self._creations.labels(environment, start).observe(seconds)

    def session_ended(self, reason: str) -> None:
        """Count a session's end, by the word of the failure vocabulary."""
        self._ends.labels(reason).inc()

    def call_ended(self, environment: str, outcome: str, seconds: float) -> None:
        """Count a call, by the name of the event that it ended with."""
        self._calls.labels(environment, outcome).observe(seconds)

    def engine_asked(self, request: str, outcome: str, seconds: float) -> None:
        """Count a request to the engine."""
        self._engine.labels(request, outcome).observe(seconds)

    def warm_container_lost(self, image: str) -> None:
        """Count a container that was started beforehand in vain."""
        self._warm_deaths.labels(image).inc()

    def show(self, name: str, help_text: str, look: Look, label: str = "", *, counter: bool = False) -> None:
        """Have a gauge, or a counter, looked at whenever somebody asks.

        ``look`` returns a value, or one for each value of ``label``.
        """
        self._registry.register(_Looked(name, help_text, look, label, counter=counter))

    def expose(self, accept: str) -> tuple[bytes, str]:
        """Return everything in the form that fits an ``Accept`` header, and the name of that form."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type


class _Looked(Collector):
    def __init__(self, name: str, help_text: str, look: Look, label: str, *, counter: bool) -> None:
        self._kind = CounterMetricFamily if counter else GaugeMetricFamily
        self._name = name
        self._help = help_text
        self._look = look
        self._label = label

    def describe(self) -> Iterable[Metric]:
        """Nothing is known before it is asked for."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Look."""
        found = self._look()
        family = self._kind(self._name, self._help, labels=[self._label] if self._label else ())
        if isinstance(found, Mapping):
            for value, number in found.items():
                family.add_metric([value], number)
        else:
            family.add_metric([], found)
        yield family

"""The exporter of a process's spans, where an endpoint is configured and `otlp` installed."""

from processes.spans import SpanExporter


class ExporterMissing(Exception):
    """The packages of the extra `otlp` are not installed."""


def connect_exporter(
    endpoint: str, service_name: str, scope: str, instance_id: str | None = None
) -> SpanExporter:
    """An exporter to the OTLP collector at `endpoint`, which need not be up yet.

    Raises ExporterMissing.
    """
    try:
        # opentelemetry is an extra, and takes time to import.
        from processes.otlp import connect  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        raise ExporterMissing(
            f"--otlp-endpoint {endpoint}: {error.name} is not installed; it comes with the extra "
            "otlp: pip install 'tandem[otlp]'"
        ) from error
    return connect(endpoint, service_name, scope, instance_id)

"""The exporter of spans: its packages, its warnings, and the metadata between the processes."""

import logging
import sys

import pytest

from processes.spans import TraceContext, metadata_pair, parse_metadata_value
from processes.tracing import ExporterMissing, connect_exporter

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize("state", ["", "a=1", "a=1,b=2 3"])
def test_a_metadata_value_is_parsed_back(state: str) -> None:
    context = TraceContext(TRACE_ID, SPAN_ID, state)
    _, value = metadata_pair(7, context)
    assert parse_metadata_value(value) == (7, context)


def test_missing_packages_are_named_with_their_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "processes.otlp", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    with pytest.raises(ExporterMissing, match=r"pip install 'tandem\[otlp\]'"):
        connect_exporter("http://127.0.0.1:4317", "router", "tandem.router")


def test_the_sdk_s_warnings_are_logged_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    exporter = connect_exporter("http://127.0.0.1:9", "router", "tandem.router")
    for _ in range(5):
        logging.getLogger("opentelemetry.exporter").error("no way to %s", "there")
    exporter.close(3.0)
    (line,) = caplog.messages
    assert line == "traces are being lost (logged once in 60 s): no way to there"

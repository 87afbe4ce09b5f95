"""A front's socket and the limits of its connections, as the knobs of every front say."""

from router.http.server.listening import Door, bind, bind_unix
from router.http.server.protocol import ConnectionRules
from router.http.server.settings import FrontConfig
from router.http.server.tls import server_tls
from router.telemetry.instruments import Counter


def open_door(config: FrontConfig) -> Door:
    """The bound socket. Raises BadConfig for files of TLS, StartupFailed for its place."""
    tls = server_tls(config)
    if config.http_uds is not None:
        return bind_unix(config.http_uds, tls)
    return bind(config.hostname, config.port, tls)


def connection_rules(config: FrontConfig, cuts: Counter) -> ConnectionRules:
    """What one connection may send, and how slowly; `cuts` counts those cut, by cause."""
    return ConnectionRules(
        max_head_len=config.header_limit,
        head_timeout_s=config.header_timeout,
        body_timeout_s=config.body_timeout,
        write_timeout_s=config.write_timeout,
        max_message_len=config.socket_message_limit,
        ping_interval_s=config.socket_ping_interval,
        cuts=cuts,
    )

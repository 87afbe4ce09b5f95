"""Wires the front of several models, or of replicas, by hand, and runs it until it is stopped.

    python -m fleet --model ID ... [--flag VALUE ...] [-- FLAGS OF launcher serve ...]

    several models: socket -> names, table, servers -> manager -> HTTP and LMTP
    replicas:       socket -> servers, or their URLs -> pool -> HTTP and LMTP

The first SIGTERM, SIGINT or SIGHUP drains: no new requests are accepted, and running ones may
finish within --graceful-termination-timeout. The second one stops at once.

Exit codes: 0 stopped by a signal; 1 could not start, or a second signal; 2 a bad flag.
"""

import asyncio
import logging
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import uvloop
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp

from fleet.config import FleetCommand, FleetConfig, read_config
from fleet.discovery import Discovery
from fleet.errors import DidNotStart
from fleet.front import Front
from fleet.metrics import FleetMetrics
from fleet.model_manager import ModelManager
from fleet.model_table import LoadingRules, ModelTable
from fleet.names import AnyModel, ListedModels, ModelNames
from fleet.relay import ReplicaSockets
from fleet.replica_front import MoveRules, ReplicaFront
from fleet.replica_pool import CheckRules, ReplicaPool, RunningReplicas
from fleet.replica_servers import ReplicaRules, ReplicaServers
from fleet.servers import LaunchedServers, ServerRules
from fleet.sockets import FleetSockets, SocketServices
from processes.addresses import socket_folder
from processes.hub import HuggingFaceHub
from processes.logs import Console, start_logging
from processes.settings import BadConfig
from processes.signals import Signals, first_of
from router.http.bodies import BodyReader, JsonBounds, ParserThread, end
from router.http.server.access import Access, Cors
from router.http.server.auth import ApiKeyAuth, KeyRing, plain_keys
from router.http.server.listen import HttpServer, ListenFailed, bind_configured, configured_limits

_logger = logging.getLogger("fleet")
# Of the largest models: their own servers know theirs.
_VOCAB_SIZE = 300_000
_NUM_PROMPT_IDS = 1 << 22
_LAST_BYTES_S = 5.0


def main(argv: Sequence[str]) -> int:
    """Run the front; answers the exit code."""
    try:
        command = read_config(argv)
    except BadConfig as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    start_logging(command.config.log_level, json_output=command.config.json_output)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        with (
            socket_folder() as folder,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            return runner.run(_run(command, folder))
    except BadConfig as error:
        # Files of TLS, which are read where the socket is made.
        sys.stderr.write(f"error: {error}\n")
        return 2
    except ListenFailed as error:
        sys.stderr.write(f"error: {error}\n")
        return 1


async def _run(command: FleetCommand, folder: Path) -> int:
    config = command.config
    signals = Signals(config.parent_pid)
    metrics = FleetMetrics(CollectorRegistry())
    console = Console(config.json_output)
    bound = bind_configured(config)
    build = _of_replicas if config.has_replicas else _of_models
    front = build(command, folder, metrics, console)
    app = Access(Cors(_with_keys(front.app, config, metrics), config.cors_allow_origin))
    http = HttpServer(app, bound, _LAST_BYTES_S, configured_limits(config, metrics.connections_cut))
    await http.start()
    started = asyncio.create_task(front.servers.start())
    await first_of(signals.first.wait(), started)
    failure = started.exception() if started.done() else None
    if started.done() and failure is None:
        _logger.info("ready at %s for %s", http.address, front.about)
        await signals.first.wait()
    _logger.info("draining, at most %g s", config.graceful_termination_timeout)
    draining = asyncio.create_task(front.servers.drain())
    await first_of(signals.second.wait(), draining)
    if not draining.done():
        front.servers.stop_now()
        http.stop_at_once()
        await draining
    await end(started)
    await front.sockets.close()
    await http.stop()
    console.flush()
    if isinstance(failure, DidNotStart):
        sys.stderr.write(f"error: {failure}\n")
    elif failure is not None:
        raise failure
    _logger.info("stopped")
    return 1 if failure is not None or signals.second.is_set() else 0


@dataclass(frozen=True, slots=True)
class _Parts:
    """What a front is made of; `about` says what it serves."""

    app: ASGIApp
    servers: ModelManager | RunningReplicas
    sockets: FleetSockets | ReplicaSockets
    about: str


def _of_replicas(
    command: FleetCommand, folder: Path, metrics: FleetMetrics, console: Console
) -> _Parts:
    config = command.config
    pool = ReplicaPool(metrics, CheckRules())
    source: Discovery | ReplicaServers = Discovery(
        config.replica, pool, config.graceful_termination_timeout
    )
    about = f"replicas at {', '.join(config.replica)}"
    if config.replicas is not None:
        model = config.model[0] if config.model else None
        rules = ReplicaRules(
            count=config.replicas,
            model=model,
            flags=command.child_flags,
            folder=folder,
            gpus=config.replica_gpus,
            num_shard=config.replica_shards,
            graceful_timeout_s=config.graceful_termination_timeout,
        )
        source = ReplicaServers(rules, command.environ, console, pool)
        about = f"{config.replicas} replicas of {model or 'the bundled model'}"
    sockets = ReplicaSockets(pool, metrics)
    moves = MoveRules(config.front_secret, takes_any=config.migrate == "any")
    max_body_len = config.max_body_len(with_images=True)
    bodies = BodyReader(max_body_len, config.body_timeout, metrics.connections_cut)
    app = ReplicaFront(pool, metrics, sockets, bodies, _parser(), moves)
    return _Parts(app, RunningReplicas(pool, source), sockets, about)


def _of_models(
    command: FleetCommand, folder: Path, metrics: FleetMetrics, console: Console
) -> _Parts:
    config = command.config
    loading = LoadingRules(
        max_loaded=config.max_loaded_models,
        turn_s=config.model_turn,
        retry_after_s=config.model_retry_after,
        idle_timeout_s=config.model_idle_timeout,
    )
    rules = ServerRules(
        flags=command.child_flags,
        folder=folder,
        max_loaded=config.max_loaded_models,
        memory_fraction=config.cuda_memory_fraction,
        graceful_timeout_s=config.graceful_termination_timeout,
    )
    servers = LaunchedServers(rules, command.environ, console)
    manager = ModelManager(ModelTable(loading), servers, metrics, config.model_load_timeout)
    names = _names(command)
    hello = {
        "server": f"tandem {version('tandem')}",
        "max_message_len": config.socket_message_limit,
        "max_streams": config.max_socket_streams,
    }
    parser = _parser()
    services = SocketServices(manager, names, metrics, hello, parser)
    sockets = FleetSockets(services, config.api_key)
    max_body_len = config.max_body_len(with_images=True)
    bodies = BodyReader(max_body_len, config.body_timeout, metrics.connections_cut)
    app = Front(
        manager,
        names,
        metrics,
        sockets,
        bodies,
        parser,
        version=version("tandem"),
        max_loaded=config.max_loaded_models,
        created_s=int(time.time()),
        keys=config.api_key,
    )
    return _Parts(app, manager, sockets, ", ".join(config.model))


def _parser() -> ParserThread:
    return ParserThread(JsonBounds.of_model(_VOCAB_SIZE, _NUM_PROMPT_IDS))


def _with_keys(app: ASGIApp, config: FleetConfig, metrics: FleetMetrics) -> ASGIApp:
    if not config.api_key:
        return app
    return ApiKeyAuth(
        app,
        KeyRing(plain_keys(config.api_key)),
        metrics.rejected,
        protects_metrics=config.protect_metrics,
    )


def _names(command: FleetCommand) -> ModelNames:
    if not command.config.takes_any:
        return ListedModels(command.config.model)
    config = command.config
    hub = HuggingFaceHub() if config.hub_models else None
    root = config.models_folder or Path.cwd()
    return AnyModel(root, hub)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

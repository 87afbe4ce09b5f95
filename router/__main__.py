"""Wires the router by hand and runs it until a signal stops it.

    python -m router --master-shard-uds-path PATH|HOST:PORT --tokenizer-name FOLDER
    python -m router print-schema              the OpenAPI document, and no server

    socket, tokenizer -> shards: discovery, info, warm-up -> scheduler -> batcher -> HTTP

The first SIGTERM, SIGINT or SIGHUP drains: nothing new is taken, what runs may finish within
--graceful-termination-timeout, what is left gets an error as its last event. The second one stops
at once.

Exit codes: 0 stopped when asked; 1 could not start, or could not go on; 2 a bad flag.
"""

import asyncio
import gc
import logging
import resource
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path

import orjson
import uvloop
from prometheus_client import CollectorRegistry

from constraints.special_tokens import EndTokens
from constraints.worker.pool import PoolRules, VocabularyFile, WorkerPool
from processes.json_file import read_object
from processes.logs import start_logging
from processes.settings import BadConfig
from processes.signals import Signals, Stopped, first_of
from processes.worker_threads import NoThreads
from proto.contract import ModelInfo
from router.config import RouterConfig, read_config
from router.engine.adapters import Adapters, find_adapter
from router.engine.admission import KeyLimits
from router.engine.batcher import Batcher, BatcherLimits
from router.engine.constraints import ConstraintCheck
from router.engine.infer import Infer
from router.engine.launcher import Launcher
from router.engine.observer import StepObserver
from router.engine.validation import Validation, marker_id_of
from router.http.answers import ReadingRules
from router.http.app import Services, create_app, openapi_without_server
from router.http.batches.runner import BatchRunner
from router.http.batches.store import BatchStore
from router.http.bodies import end
from router.http.images import ImageReader
from router.http.lmtp.session import Sockets
from router.http.lmtp.streams import SocketLimits
from router.http.served_models import PLACEHOLDERS
from router.http.server.auth import KeyRing, plain_keys, read_key_file
from router.http.server.listen import (
    HttpServer,
    ListenFailed,
    bind_configured,
    configured_limits,
)
from router.http.server_info import capacity_of, limits_of, server_info
from router.images.memory import ImageMemory
from router.images.pool import Blind, ImagePool, ImageRules, may_see
from router.request.errors import Displaced, ShardFailed, StartupFailed, TemplateFailed
from router.scheduler.allocator import Allocator
from router.scheduler.scheduler import Scheduler, SchedulerLimits
from router.scheduler.states import StateSlots
from router.shards.shards import Shards, ShardTimeouts
from router.telemetry.metrics import Metrics
from router.telemetry.tracing import Tracer, start_tracing
from router.text.chat_template import ChatTemplate
from router.text.model_card import example_prompts
from router.text.tokenizer import Tokenizer
from router.text.tokenizer_files import find_tokenizer

_logger = logging.getLogger("router")

# After the drain: the step under way, and answers that slow readers have not taken yet.
_LAST_STEP_S = 5.0
_LAST_BYTES_S = 5.0
# What a check of a constraint may wait beside what it may compute.
_QUEUE_S = 0.5


def main(argv: Sequence[str]) -> int:
    """Run the router; answers the exit code."""
    if argv[:1] == ["print-schema"]:
        document = openapi_without_server(version("tandem"))
        sys.stdout.write(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode() + "\n")
        return 0
    only_checks = argv[:1] == ["check"]
    try:
        config = read_config(argv[1:] if only_checks else argv)
    except BadConfig as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    start_logging(config.log_level, json_output=config.json_output)
    _raise_file_limit()
    try:
        if only_checks:
            return _check(config)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_run(config))
    except BadConfig as error:
        # Files of TLS, which are read where the socket is made.
        sys.stderr.write(f"error: {error}\n")
        return 2
    except (StartupFailed, ShardFailed, ListenFailed, NoThreads) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1


def _check(config: RouterConfig) -> int:
    """What `_start` checks before the shards are there. Raises BadConfig and StartupFailed."""
    _read_keys(config)
    tokenizer, _ = _load_text(config, config.tokenizer_name or "")
    expected = _expected_vocabulary(tokenizer.path)
    if expected is not None and expected.vocab_size is not None:
        _warn_of_tokens_beyond(tokenizer, expected.vocab_size)
    tokenizer.close()
    _adapter_folders(config)
    return 0


def _batches(config: RouterConfig, keys: KeyRing) -> BatchRunner | None:
    """None where they are off. Raises StartupFailed."""
    if config.batch_file is None:
        return None
    retention_s = 3600.0 * config.batch_retention_hours
    store = BatchStore(config.batch_file, config.max_batch_bytes, retention_s)
    return BatchRunner(store, keys, config.max_concurrent_requests)


def _adapter_folders(config: RouterConfig) -> dict[str, str]:
    """By the adapters' names; what is not here is fetched from the hub. Raises StartupFailed."""
    return {name: str(find_adapter(path)) for name, path in config.lora_adapters}


def _raise_file_limit() -> None:
    """Raises the limit of open files: each connection is one, and many systems grant 1024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@dataclass(frozen=True, slots=True)
class _Router:
    """Everything that lives as long as the router does."""

    tokenizer: Tokenizer
    shards: Shards
    batcher: Batcher
    http: HttpServer
    sockets: Sockets
    tracer: Tracer
    checks: ConstraintCheck
    batches: BatchRunner | None
    images: ImagePool | None

    async def close(self) -> None:
        await self.checks.close()
        if self.images is not None:
            await self.images.close()
        self.tokenizer.close()
        await self.shards.close()
        await asyncio.to_thread(self.tracer.close)


async def _run(config: RouterConfig) -> int:
    keys = _read_keys(config)
    reload = None if config.api_key_file is None else partial(_reload_keys, config, keys)
    signals = Signals(config.parent_pid, on_hangup=reload)
    try:
        router = await signals.unless_stopped(_start(config, keys))
    except Stopped:
        return 0
    # What was loaded stays; looking through it again and again only costs time.
    gc.collect()
    gc.freeze()
    stepping = asyncio.create_task(router.batcher.run())
    try:
        # Then the first constraint takes no longer than later ones.
        await router.checks.until_started()
        await router.http.start()
        _logger.info("ready at %s", router.http.address)
        batching = None if router.batches is None else asyncio.create_task(router.batches.run())
        await first_of(signals.first.wait(), stepping)
        if batching is not None:
            await end(batching)
        if not stepping.done():
            await _drain(config, router, signals, stepping)
        await _stop(router, signals, stepping)
        return _exit_code(signals, stepping)
    finally:
        stepping.cancel()
        await asyncio.gather(stepping, return_exceptions=True)
        await router.close()


async def _drain(
    config: RouterConfig, router: _Router, signals: Signals, stepping: asyncio.Task[None]
) -> None:
    # The shards end with the launcher, and nobody starts them anew.
    timeout_s = 0.0 if signals.is_orphaned else config.graceful_termination_timeout
    _logger.info("draining: %d requests, at most %g s", router.batcher.num_streams, timeout_s)
    router.sockets.drain()
    draining = asyncio.create_task(router.batcher.drain(timeout_s))
    await first_of(signals.second.wait(), draining, stepping)
    draining.cancel()
    await asyncio.gather(draining, return_exceptions=True)


async def _stop(router: _Router, signals: Signals, stepping: asyncio.Task[None]) -> None:
    """Ends the batcher, which ends every stream, and then the server that writes them."""
    if signals.second.is_set():
        stepping.cancel()
    await asyncio.wait({stepping}, timeout=_LAST_STEP_S)
    closing = asyncio.create_task(_close(router))
    if not signals.second.is_set():
        await first_of(signals.second.wait(), closing)
    if signals.second.is_set():
        router.http.stop_at_once()
    await closing
    _logger.info("stopped")


async def _close(router: _Router) -> None:
    """Closes sockets with the reason first; the server alone would just hang up."""
    await router.sockets.close()
    await router.http.stop()


def _exit_code(signals: Signals, stepping: asyncio.Task[None]) -> int:
    error = stepping.exception() if stepping.done() and not stepping.cancelled() else None
    if isinstance(error, Displaced):
        _logger.critical("the router ends: %s", error)
        return 1
    if error is not None:
        _logger.critical("the router cannot go on", exc_info=error)
        return 1
    return 1 if signals.second.is_set() else 0


def _read_keys(config: RouterConfig) -> KeyRing:
    """Empty where no key is needed. Raises BadConfig."""
    if config.api_key_file is not None:
        return KeyRing(read_key_file(config.api_key_file))
    return KeyRing(plain_keys(config.api_key))


def _reload_keys(config: RouterConfig, keys: KeyRing) -> None:
    """Reads the file again; one that is wrong changes nothing."""
    assert config.api_key_file is not None
    try:
        keys.replace(read_key_file(config.api_key_file))
    except BadConfig as error:
        _logger.error("the API keys stay as they were: %s", error)
    else:
        _logger.info("%d API keys, from %s", len(keys), config.api_key_file)


async def _start(config: RouterConfig, keys: KeyRing) -> _Router:
    """Raises BadConfig, StartupFailed, ShardFailed or ListenFailed."""
    tracer = start_tracing(config.otlp_endpoint, config.otlp_service_name)
    timeouts = ShardTimeouts(
        connect_s=config.shard_connect_timeout,
        warmup_s=config.shard_warmup_timeout,
        step_s=config.shard_step_timeout,
    )
    async with AsyncExitStack() as closed_on_failure:
        bound = bind_configured(config)
        closed_on_failure.callback(bound.close)
        name = config.tokenizer_name
        text = _load_text(config, name) if name else None
        folders = await asyncio.to_thread(_adapter_folders, config)
        pool_rules = PoolRules(
            cpu_s=config.constraint_timeout,
            wait_s=config.constraint_timeout + _QUEUE_S,
            memory_bytes=config.constraint_memory << 20,
            max_waiting=config.max_constraints_waiting,
        )
        workers = None
        expected = None if text is None else _expected_vocabulary(text[0].path)
        if expected is not None and not config.disable_grammar_support:
            # They read the vocabulary beside the shards, which load.
            workers = WorkerPool(expected, pool_rules)
            closed_on_failure.push_async_callback(workers.close)
            await workers.wait_spawned()
        image_rules = ImageRules(config.max_image_pixels)
        images = None
        if text is not None and may_see(text[0].path.parent):
            # As the constraints' workers, beside the shards, and before gRPC has threads.
            images = ImagePool(text[0].path.parent, image_rules)
            closed_on_failure.push_async_callback(images.close)
            await images.wait_spawned()
        path = config.master_shard_uds_path
        shards = await Shards.connect(
            path, timeouts, time.time_ns(), tracer, token=config.shard_token
        )
        closed_on_failure.push_async_callback(shards.close)
        info = await shards.info()
        tokenizer, template = text or _load_text(config, info.model_id)
        _warn_of_tokens_beyond(tokenizer, info.vocab_size)
        vocabulary = VocabularyFile(
            tokenizer.path, info.vocab_size, info.eos_token_ids, info.max_position_embeddings
        )
        pool = await shards.warmup(
            config.max_batch_prefill_tokens, config.batch_size, config.max_total_tokens
        )
        if not config.disable_grammar_support and expected != vocabulary:
            if workers is not None:
                await workers.close()
            workers = WorkerPool(vocabulary, pool_rules)
            closed_on_failure.push_async_callback(workers.close)
        limits = limits_of(config, info, pool, _template_ends(tokenizer, template, info))
        if limits.sampling_defaults:
            shown = ", ".join(
                f"{name} {value:g}" for name, value in limits.sampling_defaults.items()
            )
            _logger.info("requests that leave sampling parameters out get %s", shown)
        metrics = Metrics(
            CollectorRegistry(),
            max_input_len=limits.max_input_len,
            max_total_len=limits.max_total_len,
            for_gateways=config.metrics_names == "vllm",
        )
        metrics.open_keys(keys.names)
        if images is None and info.sees_images:
            images = ImagePool(tokenizer.path.parent, image_rules)
            closed_on_failure.push_async_callback(images.close)
        image_memory = ImageMemory(config.image_memory << 20, metrics.image_memory_bytes)
        if images is not None:
            try:
                await _start_images(images, config, info, tokenizer, image_memory, metrics)
            except Blind as reason:
                await images.close()
                images = None
                if info.sees_images:
                    _logger.warning("images are not served: %s", reason)
                    info = replace(info, sees_images=False, blind_reason=str(reason))
        key_limits = KeyLimits()
        prompts = example_prompts(tokenizer.path.parent)
        about = server_info(config, shards.num_ranks, info, pool, limits, prompts)
        capacity = capacity_of(info, pool, limits)
        _logger.info("%s on %s: %s", about.model_id, info.device_type, capacity)
        if config.prefix_caching and not about.prefix_caching:
            _logger.warning(
                "prefix caching is off: the model has states beside keys and values, and its"
                " executor (%s) keeps none with which a later request could begin",
                info.executor,
            )
        adapters = Adapters(shards, info.max_loras, (about.model_id, *about.aliases, *PLACEHOLDERS))
        await adapters.begin(folders)
        checks = ConstraintCheck(
            replace(vocabulary, max_len=limits.max_total_len),
            pool_rules,
            metrics,
            spells_ascii=tokenizer.spells_ascii(),
            keys=key_limits,
        )
        if workers is not None:
            await checks.start(workers)
        scheduler = Scheduler(
            SchedulerLimits(
                config.max_batch_prefill_tokens,
                config.batch_size,
                max_drafts=about.max_drafts,
                images_see_ahead=info.images_see_ahead,
            ),
            Allocator(
                pool.num_blocks,
                pool.block_size,
                about.prefix_caching,
                StateSlots(pool.num_states) if info.state_bytes else None,
            ),
            checks_steps=config.check_invariants,
        )
        batcher = Batcher(
            scheduler,
            shards,
            tokenizer,
            StepObserver(metrics, pool.block_size, tracer),
            BatcherLimits(
                max_concurrent_requests=config.max_concurrent_requests,
                progress_s=config.progress_timeout,
                restart_s=config.shard_restart_timeout,
            ),
            launcher=Launcher(config.parent_pid),
            keys=key_limits,
            adapters=adapters,
        )
        template.start()
        end_tokens = [tokenizer.token_text(each) for each in limits.eos_token_ids]
        marker = None if images is None else images.marker
        template.prove(end_tokens, marker)
        rules = ReadingRules(
            separates_thoughts=config.reasoning_format == "auto",
            takes_unproven_tools=config.unproven_tools == "generic",
        )
        _log_verdicts(template, takes_unproven_tools=rules.takes_unproven_tools)
        infer = Infer(batcher, checks)
        reader = None
        if images is not None:
            # Its HTTP client takes a tenth of a second to import.
            from router.images.fetching import ImageFetcher  # noqa: PLC0415

            fetcher = ImageFetcher(config.max_image_fetch_size, image_memory, config.fetched_hosts)
            reader = ImageReader(
                fetcher.fetch,
                images.prepare,
                infer,
                metrics,
                images.marker,
                max_images=config.max_images,
            )
        services = Services(
            infer=infer,
            validation=Validation(limits, tokenizer, checks, marker),
            tokenizer=tokenizer,
            chat_template=template,
            metrics=metrics,
            info=about,
            tracer=tracer,
            judges=checks,
            adapters=adapters,
            reading_rules=rules,
            images=reader,
        )
        batches = _batches(config, keys)
        app = create_app(
            services,
            max_body_len=config.max_body_len(with_images=about.sees),
            body_timeout_s=config.body_timeout,
            api_keys=keys if keys else None,
            protects_metrics=config.protect_metrics,
            allowed_origins=config.cors_allow_origin,
            aliases=_aliases(config),
            resume_grace_s=config.resume_grace,
            front_secret=config.front_secret,
            strict_fields=config.strict_fields,
            lora_folders=config.lora_folders,
            batches=batches,
            admin_keys=KeyRing(plain_keys([config.admin_api_key] if config.admin_api_key else [])),
            socket_limits=SocketLimits(
                max_message_len=config.socket_message_limit,
                max_streams=config.max_socket_streams,
                max_beams=config.max_beams,
            ),
        )
        connection_limits = configured_limits(config, metrics.connections_cut)
        http = HttpServer(app, bound, _LAST_BYTES_S, connection_limits)
        closed_on_failure.pop_all()
    return _Router(
        tokenizer, shards, batcher, http, services.sockets, tracer, checks, batches, images
    )


async def _start_images(
    images: ImagePool,
    config: RouterConfig,
    info: ModelInfo,
    tokenizer: Tokenizer,
    memory: ImageMemory,
    metrics: Metrics,
) -> None:
    """Raises Blind where no image can be served."""
    if not info.sees_images:
        raise Blind("its shards do not see")
    most = config.max_batch_prefill_tokens - config.batch_size
    max_span_len = most if info.images_see_ahead else None
    await images.start(info.dtype, memory, metrics, max_span_len)
    if marker_id_of(images.marker, tokenizer) is None:
        raise Blind(f"its tokenizer has no token {images.marker}, which stands for an image")


def _aliases(config: RouterConfig) -> dict[str, str]:
    """The paths that Vertex AI chose, with ours."""
    chosen = {config.aip_predict_route: "/vertex", config.aip_health_route: "/health"}
    return {path: ours for path, ours in chosen.items() if path is not None}


def _load_text(config: RouterConfig, name: str) -> tuple[Tokenizer, ChatTemplate]:
    folder = find_tokenizer(name, config.revision)
    tokenizer = Tokenizer.load(folder, config.tokenizer_config_path, config.validation_workers)
    tokenizer.try_out()
    template = ChatTemplate(
        tokenizer.chat_templates,
        tokenizer.bos_token,
        tokenizer.eos_token,
        response_template=tokenizer.response_template,
        control_tokens=None if config.allow_control_tokens else tokenizer.control_tokens,
    )
    for fault in template.faults:
        _logger.warning("%s; chats will be refused", fault)
    return tokenizer, template


def _warn_of_tokens_beyond(tokenizer: Tokenizer, vocab_size: int) -> None:
    if tokenizer.vocab_size > vocab_size:
        _logger.warning(
            "the tokenizer has ids up to %d, and the model has %d tokens: prompts with one of the "
            "others are refused",
            tokenizer.vocab_size - 1,
            vocab_size,
        )


def _expected_vocabulary(tokenizer_path: Path) -> VocabularyFile | None:
    """The vocabulary by a model's files beside its tokenizer.json, before shards tell theirs.

    None where it cannot be known: the shards say what is wrong with a file.
    """
    folder = tokenizer_path.parent
    try:
        config = read_object(folder / "config.json")
        end_ids = EndTokens.read(folder, tokenizer_path).ids
    except (OSError, ValueError):
        return None
    config = config.get("text_config") or config
    size = config.get("vocab_size")
    max_len = config.get("max_position_embeddings")
    if not isinstance(size, int) or not isinstance(max_len, int):
        return None
    ends = tuple(token_id for token_id in end_ids if 0 <= token_id < size)
    return VocabularyFile(tokenizer_path, size, ends, max_len)


def _log_verdicts(template: ChatTemplate, *, takes_unproven_tools: bool) -> None:
    """Says what of the model's answers could not be read from its chat templates."""
    for name in template.names:
        try:
            verdict = template.verdict(name)
        except TemplateFailed:
            continue  # it is broken, which was said before
        if verdict.thought.reason and not verdict.thought.is_on:
            _logger.warning(
                "chat template %r: thoughts could not be read back (%s), and stay in the content",
                name,
                verdict.thought.reason,
            )
        if verdict.has_generic_calls:
            _logger.info(
                "chat template %r shows no calls: tools are called in a generic form, which the "
                "prompt explains",
                name,
            )
        elif not verdict.calls.is_on:
            _logger.warning(
                "chat template %r: its calls could not be read back (%s); %s",
                name,
                verdict.calls.reason,
                "they have a generic form, which the prompt explains"
                if takes_unproven_tools
                else "`tools` are refused, unless --unproven-tools is generic",
            )


def _template_ends(
    tokenizer: Tokenizer, template: ChatTemplate, info: ModelInfo
) -> tuple[int, ...]:
    """The token that the chat template writes behind an answer, unless the files name it as one.

    Empty also where it writes more than one token there.
    """
    text = template.after_answer()
    token_id = tokenizer.added_id(text)
    if token_id is None or token_id in info.eos_token_ids or token_id >= info.vocab_size:
        return ()
    _logger.warning(
        "the chat template ends an answer with %r (token %d), which the model's files do not name "
        "as an end (they name %s): it ends answers as well",
        text,
        token_id,
        ", ".join(map(str, info.eos_token_ids)) or "none",
    )
    return (token_id,)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The command line, with TGI's flag names and environment names. The only file of the launcher
that reads the environment.

HOSTNAME is not read: shells and containers set it to the machine's name, and a server must not
open itself to a network because of that.
"""

import asyncio
import os
import re
import shutil
import subprocess
import sys
import tempfile
from typing import Annotated, Optional

import typer

from client.errors import TandemError
from constraints.spec import Kind, Whitespace
from launcher import client_commands, constraint_options, fleet_options, options, tgi_options
from launcher.check import BAD_CONSTRAINT, check, check_settings, read_constraint
from launcher.console import Console
from launcher.environment import describe
from launcher.errors import BadSetting, LauncherError
from launcher.help_page import SectionedCommand, WholeGroup
from launcher.precheck import check_router
from launcher.settings import (
    BUNDLED_MODEL,
    BUNDLED_NAME,
    SECRETS,
    ServeSettings,
    children_environ,
    free_port,
    num_shards,
    require_free_port,
)
from launcher.several import check_models, front_argv, is_fleet, passed_on, refuse_of_one
from launcher.supervisor import Supervisor

CONSTRAINT_KINDS = {
    constraint_options.ConstraintType.json: Kind.JSON_SCHEMA,
    constraint_options.ConstraintType.regex: Kind.REGEX,
    constraint_options.ConstraintType.lark: Kind.LARK,
    constraint_options.ConstraintType.gbnf: Kind.GBNF,
    constraint_options.ConstraintType.choice: Kind.CHOICE,
    constraint_options.ConstraintType.where: Kind.WHERE,
}

app = typer.Typer(
    name="launcher",
    cls=WholeGroup,
    help="Serve a language model: TGI's API, OpenAI's API, one router over sharded workers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.command(cls=SectionedCommand)
def serve(
    context: typer.Context,
    model_ids: options.ModelIds = None,
    model_id_flag: options.ModelIdFlag = None,
    served_model_name: options.ServedModelName = None,
    revision: options.Revision = None,
    huggingface_hub_cache: options.HuggingfaceHubCache = None,
    weights_cache_override: options.WeightsCacheOverride = None,
    dtype: options.DtypeOption = options.Dtype.auto,
    trust_remote_code: options.TrustRemoteCode = False,
    tokenizer_config_path: options.TokenizerConfigPath = None,
    sharded: options.Sharded = None,
    num_shard: options.NumShard = None,
    device: options.DeviceOption = options.Device.auto,
    attention: options.AttentionOption = options.Attention.auto,
    cuda_memory_fraction: options.CudaMemoryFraction = 0.9,
    kv_blocks: options.KvBlocks = None,
    watermark_gamma: options.WatermarkGamma = None,
    watermark_delta: options.WatermarkDelta = None,
    hostname: options.Hostname = "127.0.0.1",
    port: options.Port = 3000,
    shard_uds_path: options.ShardUdsPath = None,
    master_addr: options.MasterAddr = "127.0.0.1",
    master_port: options.MasterPort = None,
    api_key: options.ApiKey = None,
    protect_metrics: options.ProtectMetrics = False,
    cors_allow_origin: options.CorsAllowOrigin = None,
    ssl_certfile: options.SslCertfile = None,
    ssl_keyfile: options.SslKeyfile = None,
    ssl_keyfile_password: options.SslKeyfilePassword = None,
    header_limit: options.HeaderLimit = 32_768,
    header_timeout: options.HeaderTimeout = 30.0,
    body_timeout: options.BodyTimeout = 30.0,
    write_timeout: options.WriteTimeout = 30.0,
    socket_message_limit: options.SocketMessageLimit = 8_388_608,
    socket_ping_interval: options.SocketPingInterval = 20.0,
    max_socket_streams: options.MaxSocketStreams = 256,
    max_beams: options.MaxBeams = 128,
    max_concurrent_requests: options.MaxConcurrentRequests = 128,
    max_input_tokens: options.MaxInputTokens = None,
    max_total_tokens: options.MaxTotalTokens = None,
    max_batch_prefill_tokens: options.MaxBatchPrefillTokens = 2048,
    max_batch_size: options.MaxBatchSize = None,
    max_best_of: options.MaxBestOf = 2,
    max_stop_sequences: options.MaxStopSequences = 4,
    max_top_n_tokens: options.MaxTopNTokens = 5,
    max_client_batch_size: options.MaxClientBatchSize = 4,
    disable_grammar_support: options.DisableGrammarSupport = False,
    payload_limit: options.PayloadLimit = 2_000_000,
    validation_workers: options.ValidationWorkers = 2,
    constraint_timeout: constraint_options.ConstraintTimeout = 2.0,
    constraint_memory: constraint_options.ConstraintMemory = 512,
    max_constraints_waiting: constraint_options.MaxConstraintsWaiting = 256,
    max_request_duration: options.MaxRequestDuration = None,
    progress_timeout: options.ProgressTimeout = 4.0,
    graceful_termination_timeout: options.GracefulTerminationTimeout = 90.0,
    shard_startup_timeout: options.ShardStartupTimeout = 1800.0,
    json_output: options.JsonOutput = False,
    otlp_endpoint: options.OtlpEndpoint = None,
    otlp_service_name: options.OtlpServiceName = "text-generation-inference.router",
    env: options.Env = False,
    models_folder: fleet_options.ModelsFolder = None,
    hub_models: fleet_options.HubModels = True,
    max_loaded_models: fleet_options.MaxLoadedModels = 1,
    model_load_timeout: fleet_options.ModelLoadTimeout = 300.0,
    model_idle_timeout: fleet_options.ModelIdleTimeout = None,
    model_turn: fleet_options.ModelTurn = 10.0,
    model_retry_after: fleet_options.ModelRetryAfter = 30.0,
    http_uds: fleet_options.HttpUds = None,
    parent_pid: fleet_options.ParentPid = None,
    quantize: tgi_options.Quantize = None,
    speculate: tgi_options.Speculate = 0,
    kv_cache_dtype: tgi_options.KvCacheDtype = None,
    rope_scaling: tgi_options.RopeScaling = None,
    rope_factor: tgi_options.RopeFactor = None,
    lora_adapters: tgi_options.LoraAdapters = None,
    ngrok: tgi_options.Ngrok = False,
    waiting_served_ratio: tgi_options.WaitingServedRatio = 0.3,
    max_waiting_tokens: tgi_options.MaxWaitingTokens = 20,
    max_batch_total_tokens: tgi_options.MaxBatchTotalTokens = None,
    cuda_graphs: tgi_options.CudaGraphs = None,
    prometheus_port: tgi_options.PrometheusPort = 9000,
    usage_stats: tgi_options.UsageStats = "off",
    enable_prefill_logprobs: tgi_options.EnablePrefillLogprobs = False,
    disable_custom_kernels: tgi_options.DisableCustomKernels = False,
) -> None:
    """Serve a model over HTTP, from one process or from one per GPU; or several, on demand."""
    tgi_options.refuse(
        quantize=quantize,
        speculate=speculate,
        kv_cache_dtype=kv_cache_dtype,
        rope_scaling=rope_scaling,
        rope_factor=rope_factor,
        lora_adapters=lora_adapters,
        ngrok=ngrok,
    )
    models = _models(model_ids, model_id_flag)
    if env:
        typer.echo(describe(), err=True)
    if http_uds is None:
        require_free_port(hostname, port)
    model = models[0] if models else None
    if (
        disable_custom_kernels
        and attention is options.Attention.auto
        and device is not options.Device.cuda
    ):
        attention = options.Attention.cpu
    with tempfile.TemporaryDirectory(prefix="tandem-") as private_folder:
        settings = ServeSettings(
            model_id=model or str(BUNDLED_MODEL),
            served_model_name=served_model_name or (None if model else BUNDLED_NAME),
            revision=revision,
            num_shard=num_shards(sharded, num_shard, device, os.environ),
            device=device,
            hostname=hostname,
            port=port,
            uds_path=shard_uds_path or f"{private_folder}/shard",
            master_addr=master_addr,
            master_port=master_port or free_port(),
            graceful_timeout_s=graceful_termination_timeout,
            startup_timeout_s=shard_startup_timeout,
            shard_flags=_flags(
                dtype=dtype,
                device=device,
                attention=attention,
                trust_remote_code=trust_remote_code,
                cuda_memory_fraction=cuda_memory_fraction,
                kv_blocks=kv_blocks,
                watermark_gamma=watermark_gamma,
                watermark_delta=watermark_delta,
                json_output=json_output,
                otlp_endpoint=otlp_endpoint,
                otlp_service_name=f"{otlp_service_name.removesuffix('.router')}.server",
            ),
            router_flags=_flags(
                tokenizer_config_path=tokenizer_config_path,
                protect_metrics=protect_metrics,
                cors_allow_origin=_joined(cors_allow_origin),
                ssl_certfile=ssl_certfile,
                ssl_keyfile=ssl_keyfile,
                header_limit=header_limit,
                header_timeout=header_timeout,
                body_timeout=body_timeout,
                write_timeout=write_timeout,
                socket_message_limit=socket_message_limit,
                socket_ping_interval=socket_ping_interval,
                max_socket_streams=max_socket_streams,
                max_beams=max_beams,
                max_concurrent_requests=max_concurrent_requests,
                max_input_tokens=max_input_tokens,
                max_total_tokens=max_total_tokens,
                max_batch_prefill_tokens=max_batch_prefill_tokens,
                max_batch_size=max_batch_size,
                max_best_of=max_best_of,
                max_stop_sequences=max_stop_sequences,
                max_top_n_tokens=max_top_n_tokens,
                max_client_batch_size=max_client_batch_size,
                disable_grammar_support=disable_grammar_support,
                payload_limit=payload_limit,
                validation_workers=validation_workers,
                constraint_timeout=constraint_timeout,
                constraint_memory=constraint_memory,
                max_constraints_waiting=max_constraints_waiting,
                max_request_duration=max_request_duration,
                progress_timeout=progress_timeout,
                json_output=json_output,
                otlp_endpoint=otlp_endpoint,
                otlp_service_name=otlp_service_name,
            ),
            has_tls=ssl_certfile is not None,
            secrets=_secrets(_joined(api_key), ssl_keyfile_password),
            http_uds=http_uds,
            parent_pid=parent_pid,
        )
        environ = children_environ(os.environ, weights_cache_override or huggingface_hub_cache)
        check_router(settings, environ)
        if is_fleet(models):
            check_models(models, trusts_code=trust_remote_code, takes_hub_models=hub_models)
            refuse_of_one(context)
            front_flags = _flags(
                hostname=hostname,
                port=port,
                http_uds=http_uds,
                parent_pid=parent_pid,
                protect_metrics=protect_metrics,
                cors_allow_origin=_joined(cors_allow_origin),
                ssl_certfile=ssl_certfile,
                ssl_keyfile=ssl_keyfile,
                header_limit=header_limit,
                header_timeout=header_timeout,
                body_timeout=body_timeout,
                write_timeout=write_timeout,
                payload_limit=payload_limit,
                socket_message_limit=socket_message_limit,
                socket_ping_interval=socket_ping_interval,
                max_socket_streams=max_socket_streams,
                graceful_termination_timeout=graceful_termination_timeout,
                cuda_memory_fraction=cuda_memory_fraction,
                json_output=json_output,
                models_folder=models_folder,
                hub_models=str(hub_models).lower(),
                max_loaded_models=max_loaded_models,
                model_load_timeout=model_load_timeout,
                model_idle_timeout=model_idle_timeout,
                model_turn=model_turn,
                model_retry_after=model_retry_after,
            )
            argv = front_argv(models, front_flags, passed_on(context))
            become = (argv, settings.router_environ(environ))
        else:
            become = None
            code = asyncio.run(Supervisor(settings, environ, Console(json_output)).run())
    if become is not None:
        # Nothing is to be watched but the front, so no process stays to watch it.
        os.execve(become[0][0], *become)
    raise typer.Exit(code)


@app.command("download-weights")
def download_weights(
    model_id: Annotated[str, typer.Argument(envvar="MODEL_ID", help="A hub id.")],
    revision: Annotated[
        Optional[str], typer.Option(envvar="REVISION", help="Branch, tag or commit.")
    ] = None,
    allow_pickle: Annotated[
        bool, typer.Option(help="Take .bin weights when there are no others; unpickling runs code.")
    ] = False,
) -> None:
    """Fetch a checkpoint into the hub's cache and print its folder."""
    argv = [sys.executable, "-m", "model_server", "download-weights", model_id]
    argv += ["--revision", revision] if revision else []
    argv += ["--allow-pickle"] if allow_pickle else []
    raise typer.Exit(subprocess.run(argv, check=False).returncode)


@app.command("check")
def check_command(
    kind: constraint_options.CheckedType,
    constraint: constraint_options.CheckedConstraint,
    tokenizer: constraint_options.CheckTokenizer = None,
    text: constraint_options.CheckedTexts = None,
    lines: constraint_options.CheckedLines = None,
    whitespace: constraint_options.CheckedSpaces = constraint_options.Spaces.flexible,
    lenient: constraint_options.Lenient = False,
    constraint_timeout: constraint_options.ConstraintTimeout = 2.0,
    constraint_memory: constraint_options.ConstraintMemory = 512,
) -> None:
    """Judge texts by a constraint: accepted, or where and why not. Needs no server.

    Exit codes: 0 all accepted, 1 some refused, 2 the constraint or the command is at fault.
    """
    spaces = Whitespace(whitespace)
    try:
        settings = check_settings(
            read_constraint(CONSTRAINT_KINDS[kind], constraint, lines, spaces, lenient=lenient),
            tokenizer=tokenizer or str(BUNDLED_MODEL),
            texts=text or [],
            lines=lines,
            timeout_s=constraint_timeout,
            memory_bytes=constraint_memory << 20,
        )
        code = check(settings, sys.stdout)
    except LauncherError as error:
        # Not 1, which says that a text was refused.
        typer.echo(f"error: {error}", err=True)
        code = BAD_CONSTRAINT
    raise typer.Exit(code)


app.command("client")(client_commands.client)
app.command("query")(client_commands.query)


@app.command("env")
def env_command() -> None:
    """Print what a report of a problem should say about this machine."""
    typer.echo(describe())


def _models(given: list[str] | None, by_flag: str | None) -> list[str]:
    """The ids of the command line, or of the variable MODEL_ID, whose text may have spaces."""
    by_variable = os.environ.get("MODEL_ID")
    models = list(given or ([] if by_flag or not by_variable else [by_variable]))
    if models and by_flag is not None and models != [by_flag]:
        raise BadSetting(f"MODEL_ID {' '.join(models)!r} and --model-id {by_flag!r} differ")
    return models or ([by_flag] if by_flag else [])


def _joined(words: list[str] | None) -> str | None:
    # A variable's text is split at its spaces before it comes here.
    return None if words is None else re.sub(",+", ",", ",".join(words))


def _secrets(*values: str | None) -> dict[str, str]:
    """The given ones of SECRETS, which are for the router's environment."""
    given = {name: value for name, value in zip(SECRETS, values, strict=True) if value is not None}
    for name, value in given.items():
        if not value:
            flag = name.lower().replace("_", "-")
            raise BadSetting(f"--{flag}: must not be empty")
    return given


def _flags(**values: object) -> tuple[str, ...]:
    """Flags of a child process; None and False are left out."""
    flags: list[str] = []
    for name, value in values.items():
        if value is None or value is False:
            continue
        flags.append("--" + name.replace("_", "-"))
        if value is not True:
            flags.append(str(value))
    return tuple(flags)


def main() -> None:
    """The console script."""
    if shutil.get_terminal_size().columns < 40:
        os.environ["COLUMNS"] = "80"
    try:
        app(tgi_options.in_our_words(sys.argv[1:]))
    except (LauncherError, TandemError) as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(1)

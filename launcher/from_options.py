"""From the options of `launcher serve` to what it is to do."""

from collections.abc import Mapping
from pathlib import Path

from launcher.declared import Told, flags_for, joined
from launcher.errors import BadSetting
from launcher.options import AccessOptions, Attention, Device, ModelOptions, ServeOptions
from launcher.settings import (
    BUNDLED_MODEL,
    BUNDLED_NAME,
    SECRETS,
    ServeSettings,
    free_port,
    num_shards,
)


def model_ids(options: ModelOptions, environ: Mapping[str, str]) -> list[str]:
    """The ids of the command line, or of the variable MODEL_ID, whose text may have spaces."""
    by_flag, by_variable = options.model_id_flag, environ.get("MODEL_ID")
    # An empty id, of a shell's variable that is not set, is none.
    given = [each for each in options.model_ids or () if each]
    models = given or ([] if by_flag or not by_variable else [by_variable])
    if models and by_flag is not None and models != [by_flag]:
        raise BadSetting(f"MODEL_ID {' '.join(models)!r} and --model-id {by_flag!r} differ")
    return models or ([by_flag] if by_flag else [])


def hub_cache(options: ModelOptions) -> Path | None:
    """The folder of the hub's cache; None is that of huggingface_hub."""
    return options.weights_cache_override or options.huggingface_hub_cache


def settings_of(
    options: ServeOptions, models: list[str], private_folder: str, environ: Mapping[str, str]
) -> ServeSettings:
    """How the first of the models, or the bundled one, is served. Raises BadSetting."""
    place = options.place
    name = options.logs.otlp_service_name
    return ServeSettings(
        model_id=models[0] if models else str(BUNDLED_MODEL),
        served_model_name=options.model.served_model_name or (None if models else BUNDLED_NAME),
        revision=options.model.revision,
        num_shard=num_shards(place.sharded, place.num_shard, place.device, environ),
        device=place.device,
        hostname=place.hostname,
        port=place.port,
        uds_path=place.shard_uds_path or f"{private_folder}/shard",
        master_addr=place.master_addr,
        master_port=place.master_port or free_port(),
        graceful_timeout_s=options.limits.graceful_termination_timeout,
        startup_timeout_s=options.limits.shard_startup_timeout,
        shard_flags=flags_for(
            Told.SHARDS,
            options,
            attention=_attention(options),
            otlp_service_name=f"{name.removesuffix('.router')}.server",
        ),
        router_flags=flags_for(Told.ROUTER, options),
        has_tls=options.access.ssl_certfile is not None,
        secrets=_secrets(options.access),
        http_uds=place.http_uds,
        parent_pid=options.fleet.parent_pid,
    )


def _attention(options: ServeOptions) -> Attention:
    is_open = options.place.attention is Attention.auto and options.place.device is not Device.cuda
    return (
        Attention.cpu if is_open and options.tgi.disable_custom_kernels else options.place.attention
    )


def _secrets(access: AccessOptions) -> dict[str, str]:
    """The given ones of SECRETS, which are for the router's environment."""
    keys = None if access.api_key is None else joined(access.api_key)
    values = zip(SECRETS, (keys, access.ssl_keyfile_password), strict=True)
    given = {name: value for name, value in values if value is not None}
    for name, value in given.items():
        if not value:
            flag = name.lower().replace("_", "-")
            raise BadSetting(f"--{flag}: must not be empty")
    return given

"""Tiny random models of transformers that see, each with two images as its processor makes them.

one = build("llava")
one.prompt(0, 1)                   ids, images and what the class takes of the whole prompt
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForImageTextToText
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from processes.image_processor import ProcessedImage
from proto.contract import Image, ImageTensor

IMAGE_ID = 150  # the placeholder
VOCAB_SIZE = 160
_TEXT: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
_TOWER: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 7,
}
_CLIP = {**_TOWER, "model_type": "clip_vision_model", "projection_dim": 32}
_SIGLIP = {**_TOWER, "model_type": "siglip_vision_model", "vision_use_head": False}
_PIXTRAL = {**_TOWER, "model_type": "pixtral", "image_size": 32, "patch_size": 4}
_GRID_TOWER: dict[str, Any] = {
    "depth": 2,
    "num_heads": 2,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
_TILES: dict[str, Any] = {"image_grid_pinpoints": [[28, 56], [56, 28], [56, 56]]}
_WINDOWED: dict[str, Any] = {
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
_QWEN: dict[str, Any] = {
    "image_token_id": IMAGE_ID,
    "video_token_id": 151,
    "vision_start_token_id": 152,
    "vision_end_token_id": 153,
}


def _text(kind: str, **own: Any) -> dict[str, Any]:
    return {**_TEXT, "model_type": kind, **own}


def _mrope(sections: list[int], **own: Any) -> dict[str, Any]:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": sections, **own}
    return {"rope_parameters": rope}


def _pixels(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _squares(num_rows: int, side: int) -> list[tuple[int, dict[str, Tensor]]]:
    return [(num_rows, {"pixel_values": _pixels(1, 3, side, side, seed=seed)}) for seed in (7, 8)]


def _sized(sizes: list[tuple[int, int]], per_row: int) -> list[tuple[int, dict[str, Tensor]]]:
    """Of whatever size; a row stands for so many pixels of each axis."""
    return [
        (
            height // per_row * (width // per_row),
            {
                "pixel_values": _pixels(1, 3, height, width, seed=height + width),
                "image_sizes": torch.tensor([[height, width]]),
            },
        )
        for height, width in sizes
    ]


def _tiled() -> list[tuple[int, dict[str, Tensor]]]:
    """Of several tiles, with a break token behind each line of them."""
    return [
        (
            num_rows,
            {
                "pixel_values": _pixels(1, num_tiles, 3, 28, 28, seed=num_rows),
                "image_sizes": torch.tensor([size]),
            },
        )
        for num_rows, num_tiles, size in (
            (16 + 8 * 9, 5, [56, 56]),
            (16 + 4 * 9, 3, [28, 56]),
        )
    ]


def _grids(channels: int) -> list[tuple[int, dict[str, Tensor]]]:
    return [
        (
            height * width // 4,
            {
                "pixel_values": _pixels(height * width, channels, seed=height),
                "image_grid_thw": torch.tensor([[1, height, width]]),
                "mm_token_type_ids": torch.ones(1, height * width // 4, dtype=torch.long),
            },
        )
        for height, width in ((4, 6), (6, 8))
    ]


def _llava(text: str = "llama", **own: Any) -> dict[str, Any]:
    return {
        "model_type": "llava",
        "text_config": _text(text),
        "vision_config": _CLIP,
        "image_token_index": IMAGE_ID,
        "vision_feature_layer": -2,
        **own,
    }


def _idefics3(kind: str) -> dict[str, Any]:
    return {
        "model_type": kind,
        "image_token_id": IMAGE_ID,
        "scale_factor": 2,
        "text_config": _text("llama"),
        "vision_config": {**_TOWER, "num_hidden_layers": 2},
    }


def _grid_model(
    kind: str, sections: list[int], tower: dict[str, Any], **text: Any
) -> dict[str, Any]:
    own = {key: text.pop(key) for key in ("partial_rotary_factor",) if key in text}
    return {
        **_QWEN,
        "model_type": kind,
        "text_config": _text(f"{kind}_text", **_mrope(sections, **own), **text),
        "vision_config": {**_GRID_TOWER, **tower},
    }


_QWEN3_TOWER: dict[str, Any] = {
    "depth": 3,
    "hidden_size": 32,
    "intermediate_size": 48,
    "out_hidden_size": 64,
    "num_position_embeddings": 64,
    "deepstack_visual_indexes": [0, 1],
}
_SMALL_SQUARES = _squares(4, 28)
_IDEFICS = [(4, {"pixel_values": _pixels(1, 1, 3, 28, 28, seed=seed)}) for seed in (7, 8)]
# The config of the whole, and of each image how many rows it has and its tensors.
_MODELS: dict[str, tuple[dict[str, Any], list[tuple[int, dict[str, Tensor]]]]] = {
    "llava": (_llava(), _squares(16, 28)),
    "llava_next": (
        _llava("mistral", model_type="llava_next", **_TILES),
        _tiled(),
    ),
    # Its decoder multiplies what it is handed.
    "llava_next-granite": (
        _llava(
            model_type="llava_next",
            text_config=_text("granite", embedding_multiplier=3.0, logits_scaling=2.0),
            **_TILES,
        ),
        _tiled(),
    ),
    "llava_onevision": (
        {
            **_llava("qwen2", model_type="llava_onevision", vision_feature_layer=-1, **_TILES),
            "vision_config": _SIGLIP,
            "video_token_index": 151,
        },
        _tiled(),
    ),
    "pixtral": (
        _llava(
            "mistral",
            vision_config=_PIXTRAL,
            vision_feature_layer=-1,
            vision_feature_select_strategy="full",
        ),
        _sized([(32, 32), (16, 32)], 4),
    ),
    "mistral3": (
        {
            "model_type": "mistral3",
            "image_token_index": IMAGE_ID,
            "spatial_merge_size": 2,
            "text_config": _text("mistral"),
            "vision_config": _PIXTRAL,
        },
        _sized([(32, 32), (16, 32)], 8),
    ),
    "internvl": (
        {
            "model_type": "internvl",
            "image_token_id": IMAGE_ID,
            "text_config": _text("qwen2"),
            "downsample_ratio": 0.5,
            "vision_config": {**_TOWER, "image_size": [28, 28], "patch_size": [7, 7]},
        },
        _SMALL_SQUARES,
    ),
    "idefics3": (_idefics3("idefics3"), _IDEFICS),
    "smolvlm": (_idefics3("smolvlm"), _IDEFICS),
    "vipllava": (
        {
            **_llava(model_type="vipllava", vision_feature_layers=[-2, -1]),
        },
        _squares(16, 28),
    ),
    "aya_vision": (
        {
            "model_type": "aya_vision",
            "text_config": _text("cohere2", **_WINDOWED),
            "image_token_index": IMAGE_ID,
            "downsample_factor": 2,
            "adapter_layer_norm_eps": 1e-5,
            "vision_config": _SIGLIP,
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "full",
        },
        _SMALL_SQUARES,
    ),
    "cohere2_vision": (
        {
            "model_type": "cohere2_vision",
            "text_config": _text("cohere2", **_WINDOWED),
            "image_token_id": IMAGE_ID,
            "downsample_factor": 2,
            "alignment_intermediate_size": 64,
            "vision_config": _SIGLIP,
        },
        _SMALL_SQUARES,
    ),
    "got_ocr2": (
        {
            "model_type": "got_ocr2",
            "text_config": _text("qwen2"),
            "image_token_index": IMAGE_ID,
            "vision_config": {
                "hidden_size": 32,
                "output_channels": 16,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "image_size": 64,
                "patch_size": 4,
                "mlp_dim": 48,
                "global_attn_indexes": [1],
                "window_size": 4,
            },
        },
        _squares(16, 64),
    ),
    "qwen2_vl": (
        _grid_model("qwen2_vl", [2, 3, 3], {"embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2}),
        _grids(96),
    ),
    "qwen2_5_vl": (
        _grid_model(
            "qwen2_5_vl",
            [2, 3, 3],
            {
                "hidden_size": 32,
                "intermediate_size": 48,
                "window_size": 16,
                "out_hidden_size": 64,
                "fullatt_block_indexes": [1],
            },
        ),
        _grids(96),
    ),
    "glm4v": (
        {
            **_grid_model(
                "glm4v",
                [1, 1, 2],
                {
                    "hidden_size": 32,
                    "out_hidden_size": 64,
                    "intermediate_size": 48,
                    "image_size": 32,
                },
                partial_rotary_factor=0.5,
            ),
            "image_start_token_id": 152,
            "image_end_token_id": 153,
        },
        _grids(96),
    ),
    "qwen3_vl": (_grid_model("qwen3_vl", [4, 2, 2], _QWEN3_TOWER), _grids(96)),
    "qwen3_vl_moe": (
        _grid_model(
            "qwen3_vl_moe",
            [4, 2, 2],
            _QWEN3_TOWER,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=48,
            decoder_sparse_step=1,
        ),
        _grids(96),
    ),
    # Three layers of four have states.
    "qwen3_5": (
        _grid_model(
            "qwen3_5",
            [1, 1, 0],
            {key: each for key, each in _QWEN3_TOWER.items() if not key.startswith("deepstack")},
            partial_rotary_factor=0.25,
            head_dim=16,
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            linear_key_head_dim=16,
            linear_value_head_dim=16,
            linear_conv_kernel_dim=4,
            layer_types=[*["linear_attention"] * 3, "full_attention"],
        ),
        _grids(96),
    ),
    "gemma3": (
        {
            "model_type": "gemma3",
            "image_token_index": IMAGE_ID,
            "mm_tokens_per_image": 4,
            "text_config": _text("gemma3_text", query_pre_attn_scalar=16, **_WINDOWED),
            "vision_config": _SIGLIP,
        },
        [
            (num_rows, {**tensors, "token_type_ids": torch.ones(1, num_rows, dtype=torch.long)})
            for num_rows, tensors in _SMALL_SQUARES
        ],
    ),
}
SEEING = tuple(_MODELS)


@dataclass(frozen=True, slots=True)
class Prompt:
    """`inputs`: what the class takes of the whole beside token ids."""

    token_ids: tuple[int, ...]
    images: tuple[Image, ...]
    inputs: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class SeeingModel:
    """A model in float32, attending eagerly, and of two images how many rows and which tensors."""

    module: Any
    images: tuple[tuple[int, Mapping[str, Tensor]], ...]

    @property
    def noise(self) -> ProcessedImage:
        """The first image, as a processor gives it."""
        num_rows, tensors = self.images[0]
        arrays = {name: each.numpy() for name, each in tensors.items()}
        return ProcessedImage((IMAGE_ID,) * num_rows, arrays)

    def prompt(self, *shown: int, begin: int = 5) -> Prompt:
        """Text, and behind each image some more."""
        token_ids = [begin, 6, 7]
        images = []
        for index in shown:
            num_rows, tensors = self.images[index]
            given = {
                name: ImageTensor(
                    each.numpy().dtype.name, tuple(each.shape), each.numpy().tobytes()
                )
                for name, each in tensors.items()
            }
            images.append(Image(bytes([index]) * 16, len(token_ids), num_rows, given))
            token_ids += [IMAGE_ID] * num_rows + [9 + num_rows % 5, 11]
        token_ids += [12, 13, 14]
        inputs = {
            name: _joined(name, [self.images[index][1][name] for index in shown], token_ids)
            for name in (self.images[0][1] if shown else ())
        }
        return Prompt(tuple(token_ids), tuple(images), inputs)

    @torch.inference_mode()
    def logits(self, prompt: Prompt) -> Tensor:
        """[num_tokens, vocab_size] by the class's own forward."""
        ids = torch.tensor([prompt.token_ids])
        logits: Tensor = self.module(input_ids=ids, use_cache=False, **prompt.inputs).logits
        return logits[0]

    def greedy(self, prompt: Prompt, num_new: int) -> list[int]:
        """What follows, each token by a forward of all before it."""
        made: list[int] = []
        for _ in range(num_new):
            token_ids = prompt.token_ids + tuple(made)
            inputs = {
                name: torch.nn.functional.pad(each, (0, len(made)))
                if name.endswith("token_type_ids")
                else each
                for name, each in prompt.inputs.items()
            }
            longer = Prompt(token_ids, prompt.images, inputs)
            made.append(int(self.logits(longer)[-1].argmax()))
        return made

    def save(self, folder: Path) -> None:
        """As a checkpoint, which names a processor; nothing is known of it."""
        self.module.save_pretrained(folder)
        (folder / "preprocessor_config.json").write_text("{}")


def _joined(name: str, tensors: list[Tensor], token_ids: list[int]) -> Tensor:
    if name.endswith("token_type_ids"):
        is_row = torch.tensor([token_ids]) == IMAGE_ID
        return is_row.long() * int(tensors[0].max())
    if tensors[0].dim() == 5 and tensors[0].shape[1] == 1:
        return torch.cat(tensors, 1)
    sizes = [max(each.shape[axis] for each in tensors) for axis in range(1, tensors[0].dim())]
    padded = [
        torch.nn.functional.pad(
            each,
            [
                number
                for size, own in zip(reversed(sizes), reversed(each.shape[1:]), strict=True)
                for number in (0, size - own)
            ],
        )
        for each in tensors
    ]
    return torch.cat(padded)


def build(name: str) -> SeeingModel:
    """Every parameter is random, so that nothing vanishes."""
    settings, images = _MODELS[name]
    kind = settings["model_type"]
    config = CONFIG_MAPPING[kind].from_dict(
        {k: v for k, v in settings.items() if k != "model_type"}
    )
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        module: Any = AutoModelForImageTextToText.from_config(
            config, dtype=torch.float32, attn_implementation="eager"
        ).eval()
    generator = torch.Generator().manual_seed(3)
    embedding = module.get_input_embeddings()
    for parameter in module.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter is embedding.weight:
            # One that is scaled is the head, too: a token would be its own successor.
            parameter.data = noise * (0.02 if hasattr(embedding, "embed_scale") else 1.0)
        elif parameter.dim() == 1:
            parameter.data = noise * 0.2 + round(float(parameter.detach().mean()))
        else:
            width = parameter.shape[-1]
            parameter.data = noise * (1.2 / width**0.5 if width > 1 else 0.2)
    return SeeingModel(module, tuple(images))

"""Whole checkpoints of tiny models that see: weights, tokenizer, processor and chat template.

As their makers save them. `python -m tests.seeing_checkpoint NAME FOLDER`.

A token is a byte, so what an image adds to a prompt can be counted by hand.
"""

import importlib
import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.byte_tokenizer import BOS_ID, EOS_ID, VOCAB_SIZE, save_byte_tokenizer

_TEXT: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB_SIZE + 16,
    "max_position_embeddings": 2048,
    "pad_token_id": EOS_ID,
    "bos_token_id": BOS_ID,
    "eos_token_id": EOS_ID,
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
# Of the size of CLIP's ViT-L/14 at 336 pixels, and of a decoder whose steps take a while.
_LARGE_TOWER: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
}
_LARGE_TEXT = _TEXT | {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12}
_TEMPLATE = """\
{%- for m in messages %}{{- m.role + ': ' }}
    {%- if m.content is string %}{{- m.content }}{% else %}
    {%- for part in m.content %}
        {%- if part.type == 'image' %}{{- 'BEGINMARKEREND' }}{% else %}{{- part.text }}{% endif %}
    {%- endfor %}{% endif %}{{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- 'assistant:' }}{% endif %}"""
Tokens = Mapping[str, int]
# Its classes are partly untyped.
_hf: Any = transformers


def _pil(family: str, name: str) -> Any:
    """A family's image processor that needs pillow alone."""
    module = f"transformers.models.{family}.image_processing_pil_{family}"
    return getattr(importlib.import_module(module), name)


def _llava(
    tokenizer: Any,
    tokens: Tokens,
    text: Mapping[str, Any] = _TEXT,
    tower: Mapping[str, Any] = _TOWER,
) -> tuple[dict[str, Any], Any]:
    config = {
        "model_type": "llava",
        "text_config": text,
        "vision_config": {**tower, "model_type": "clip_vision_model", "projection_dim": 32},
        "image_token_index": tokens["<image>"],
        "vision_feature_layer": -2,
    }
    side = tower["image_size"]
    size = {"height": side, "width": side}
    images = _pil("clip", "CLIPImageProcessorPil")(size={"shortest_edge": side}, crop_size=size)
    processor = _hf.LlavaProcessor(
        images,
        tokenizer,
        patch_size=tower["patch_size"],
        vision_feature_select_strategy="default",
        image_token="<image>",
        num_additional_image_tokens=1,
    )
    return config, processor


def _idefics3(tokenizer: Any, tokens: Tokens) -> tuple[dict[str, Any], Any]:
    config = {
        "model_type": "idefics3",
        "image_token_id": tokens["<image>"],
        "scale_factor": 2,
        "text_config": _TEXT,
        "vision_config": {**_TOWER, "num_hidden_layers": 2},
    }
    images = _pil("idefics3", "Idefics3ImageProcessorPil")(
        size={"longest_edge": 56}, max_image_size={"longest_edge": 28}
    )
    return config, _hf.Idefics3Processor(images, tokenizer, image_seq_len=4)


class _Qwen:
    """What its makers save of a processor: the part for images, and by which class it is used."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._images = _pil("qwen2_vl", "Qwen2VLImageProcessorPil")(
            patch_size=4,
            merge_size=2,
            temporal_patch_size=2,
            size={"shortest_edge": 64, "longest_edge": 3000},
        )

    def save_pretrained(self, folder: Path) -> None:
        self._tokenizer.save_pretrained(folder)
        self._images.save_pretrained(folder)
        path = folder / "preprocessor_config.json"
        settings = json.loads(path.read_text())
        settings |= {
            "image_processor_type": "Qwen2VLImageProcessor",
            "processor_class": "Qwen2_5_VLProcessor",
        }
        path.write_text(json.dumps(settings))


def _qwen2_5_vl(tokenizer: Any, tokens: Tokens) -> tuple[dict[str, Any], Any]:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
    config = {
        "model_type": "qwen2_5_vl",
        "image_token_id": tokens["<|image_pad|>"],
        "video_token_id": tokens["<|video_pad|>"],
        "vision_start_token_id": tokens["<|vision_start|>"],
        "vision_end_token_id": tokens["<|vision_end|>"],
        "text_config": {**_TEXT, "model_type": "qwen2_5_vl_text", "rope_parameters": rope},
        "vision_config": {
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 2,
            "patch_size": 4,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "window_size": 16,
            "out_hidden_size": 64,
            "fullatt_block_indexes": [1],
        },
    }
    return config, _Qwen(tokenizer)


# By name: what makes them, and the tokens that stand around an image in a prompt.
_FAMILIES: Mapping[str, tuple[Callable[[Any, Tokens], tuple[dict[str, Any], Any]], str, str]] = {
    "llava": (_llava, "", "\n"),
    "llava_large": (partial(_llava, text=_LARGE_TEXT, tower=_LARGE_TOWER), "", "\n"),
    "idefics3": (_idefics3, "", ""),
    "qwen2_5_vl": (_qwen2_5_vl, "<|vision_start|>", "<|vision_end|>"),
}
# Where it is no <image>.
_MARKERS = {"qwen2_5_vl": "<|image_pad|>"}
_IMAGE_TOKENS = (
    *("<image>", "<fake_token_around_image>", "<end_of_utterance>", "<global-img>"),
    *("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"),
)


def save(name: str, folder: Path) -> Path:
    """Writes one of `_FAMILIES`; the same bytes each time. Returns the folder."""
    make, before, behind = _FAMILIES[name]
    save_byte_tokenizer(folder)
    tokenizer = _hf.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"),
        bos_token="<s>",
        eos_token="</s>",
        pad_token="</s>",
    )
    tokenizer.add_special_tokens({"additional_special_tokens": list(_IMAGE_TOKENS)})
    tokens = {token: int(tokenizer.convert_tokens_to_ids(token)) for token in _IMAGE_TOKENS}
    settings, processor = make(tokenizer, tokens)
    config = CONFIG_MAPPING[settings.pop("model_type")].from_dict(settings)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        model: Any = _hf.AutoModelForImageTextToText.from_config(config, dtype=torch.float32).eval()
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.data = torch.randn(parameter.shape) / max(1, parameter.shape[-1]) ** 0.5
    # Of random numbers: an answer is as long as it may be.
    model.generation_config.eos_token_id = EOS_ID
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    template = _TEMPLATE.replace("BEGIN", before).replace("MARKER", _MARKERS.get(name, "<image>"))
    template = template.replace("END", json.dumps(behind)[1:-1])
    (folder / "chat_template.jinja").write_text(template)
    return folder


if __name__ == "__main__":
    save(sys.argv[1], Path(sys.argv[2]))

"""TGI's response headers about what an answer took. Milliseconds are whole numbers."""

import time

from router.http.operations.server_info import ServerInfo
from router.http.server.request_record import RequestRecord


def stream_headers(info: ServerInfo, num_characters: int) -> dict[str, str]:
    """What is known before the first token. `num_characters` are the prompt's."""
    return {"x-compute-type": info.compute_type, "x-compute-characters": str(num_characters)}


def answer_headers(
    info: ServerInfo, record: RequestRecord, num_generated_tokens: int
) -> dict[str, str]:
    """What is known at the end. Times are those of the record's first sequence."""
    total_s = time.monotonic() - record.started_s
    inference_s = record.inference_s or 0.0
    return {
        **stream_headers(info, record.num_prompt_characters),
        "x-compute-time": f"{total_s:.6f}",
        "x-total-time": _ms(total_s),
        "x-validation-time": _ms(record.validation_s),
        "x-queue-time": _ms(record.queue_s or 0.0),
        "x-inference-time": _ms(inference_s),
        "x-time-per-token": _ms(inference_s / max(1, num_generated_tokens)),
        "x-prompt-tokens": str(record.num_prompt_tokens),
        "x-generated-tokens": str(num_generated_tokens),
    }


def _ms(seconds: float) -> str:
    return str(int(1000 * seconds))

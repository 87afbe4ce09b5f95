"""Training: workers with one thread each, gradients averaged, checkpoints to go on from.

Muon turns the matrices of the layers, AdamW the embedding and the norms. Warm-up, a long plateau,
then a straight line down: until the line starts, the number of tokens may still be changed.
Knows nothing of what the text says.
"""

import json
import os
import shutil
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn
from torch.nn.functional import cross_entropy
from transformers import Qwen3ForCausalLM

from models.training import corpus, network, tokenizer
from models.training.document import PAD

CHECKPOINT = "checkpoint.pt"


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and how fast to train. Lengths in tokens are over all workers."""

    num_tokens: int
    seed: int = 0
    num_workers: int = 2
    tokens_per_step: int = 6144
    muon_lr: float = 1.5e-2
    adamw_lr: float = 6e-3
    warmup_steps: int = 60
    decay_share: float = 0.45
    long_every: int = 6
    save_every_s: float = 240.0

    def __post_init__(self) -> None:
        if self.tokens_per_step % (self.num_workers * corpus.LONG_LEN):
            raise ValueError(
                f"tokens_per_step {self.tokens_per_step} is not a whole number of rows of "
                f"{corpus.LONG_LEN} for each of {self.num_workers} workers"
            )

    @property
    def num_steps(self) -> int:
        return max(1, self.num_tokens // self.tokens_per_step)

    def lr_share(self, step: int) -> float:
        """The share of the full learning rate at a step."""
        decay_steps = max(1, int(self.num_steps * self.decay_share))
        left = (self.num_steps - step) / decay_steps
        return max(0.01, min(1.0, (step + 1) / self.warmup_steps, left))


def _optimizers(model: Qwen3ForCausalLM, plan: Plan) -> tuple[torch.optim.Optimizer, ...]:
    inner = [p for p in model.model.layers.parameters() if p.ndim == 2]
    chosen = {id(p) for p in inner}
    outer = [p for p in model.parameters() if id(p) not in chosen]
    muon = torch.optim.Muon(
        inner, lr=plan.muon_lr, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"
    )
    adamw = torch.optim.AdamW(
        outer, lr=plan.adamw_lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True
    )
    return muon, adamw


class _Loss(nn.Module):
    """The weighted mean loss of rows, in bfloat16 where that is safe."""

    def __init__(self, model: Qwen3ForCausalLM) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, weights: Tensor) -> Tensor:
        """ids, weights [num_rows, row_len + 1] to a scalar."""
        with torch.autocast("cpu", torch.bfloat16):
            logits = self.model(input_ids=ids[:, :-1], use_cache=False).logits
        losses = cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        wanted = weights[:, 1:].flatten()
        return (losses * wanted).sum() / wanted.sum()


class Trainer:
    """One worker: its rows, its copy of the model, the optimizers. Worker 0 writes checkpoints."""

    def __init__(self, plan: Plan, work: Path, rank: int) -> None:
        torch.manual_seed(plan.seed)
        self._plan, self._work, self._rank = plan, work, rank
        self._model = network.build(tokenizer.load(work))
        self._optimizers = _optimizers(self._model, plan)
        self._step, self._spent_s = 0, 0.0
        self._resume()
        words = Tokenizer.from_file(str(work / "tokenizer.json"))
        self._rows = corpus.RowStream(
            tokenizer.encoder(words),
            words.get_vocab()[PAD],
            f"{plan.seed}/{rank}/{self._step}",
        )
        loss = _Loss(self._model)
        self._loss = torch.compile(loss, dynamic=False) if shutil.which("g++") else loss

    @property
    def _checkpoint(self) -> Path:
        return self._work / CHECKPOINT

    def _resume(self) -> None:
        if not self._checkpoint.exists():
            return
        state: dict[str, Any] = torch.load(self._checkpoint, weights_only=True)
        self._model.load_state_dict(state["model"])
        for optimizer, saved in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self._step, self._spent_s = state["step"], state["spent_s"]

    def _save(self) -> None:
        """The whole state, and the model alone in the form that others load."""
        state = {
            "model": self._model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
            "step": self._step,
            "spent_s": self._spent_s,
        }
        written = self._checkpoint.with_suffix(".new")
        torch.save(state, written)
        written.replace(self._checkpoint)
        network.save(self._model, self._work)
        tokens = self._step * self._plan.tokens_per_step
        report = {"tokens": tokens, "training_s": round(self._spent_s)}
        (self._work / "training.json").write_text(json.dumps(report) + "\n")

    def _take(self) -> tuple[Tensor, Tensor]:
        is_long = self._step % self._plan.long_every == self._plan.long_every - 1
        row_len = corpus.LONG_LEN if is_long else corpus.SHORT_LEN
        num_rows = self._plan.tokens_per_step // self._plan.num_workers // row_len
        rows = self._rows.take(num_rows, row_len)
        return torch.from_numpy(rows.ids), torch.from_numpy(rows.weights)

    def _average_gradients(self) -> None:
        grads = [p.grad for p in self._model.parameters() if p.grad is not None]
        flat = torch.cat([grad.flatten() for grad in grads])
        dist.all_reduce(flat)
        flat /= self._plan.num_workers
        for grad, mean in zip(grads, flat.split([g.numel() for g in grads]), strict=True):
            grad.copy_(mean.view_as(grad))

    def _turn(self) -> float:
        """One step; the loss of this worker's rows."""
        share = self._plan.lr_share(self._step)
        lrs = (self._plan.muon_lr, self._plan.adamw_lr)
        for optimizer, lr in zip(self._optimizers, lrs, strict=True):
            optimizer.param_groups[0]["lr"] = lr * share
        loss: Tensor = self._loss(*self._take())
        loss.backward()
        self._average_gradients()
        nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        for optimizer in self._optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self._step += 1
        return loss.item()

    def run(self) -> None:
        """Trains to the plan's end, from the checkpoint if there is one."""
        saved_at = told_at = time.monotonic()
        parent = os.getppid()
        told_step = self._step
        while self._step < self._plan.num_steps:
            if os.getppid() != parent:
                raise RuntimeError("the process that started this worker is gone")
            began = time.monotonic()
            loss = self._turn()
            now = time.monotonic()
            self._spent_s += now - began
            if self._rank:
                continue
            if self._step % 25 == 0:
                speed = (self._step - told_step) * self._plan.tokens_per_step / (now - told_at)
                self._tell(loss, speed)
                told_at, told_step = now, self._step
            if now - saved_at > self._plan.save_every_s:
                self._save()
                saved_at = now
        if self._rank == 0:
            self._save()

    def _tell(self, loss: float, speed: float) -> None:
        done = self._step * self._plan.tokens_per_step / 1e6
        print(
            f"step {self._step}/{self._plan.num_steps}  {done:.2f} M tokens  loss {loss:.3f}  "
            f"{speed:,.0f} tok/s  {self._spent_s / 60:.1f} min",
            flush=True,
        )


def _work_as(rank: int, plan: Plan, work: Path, meeting: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=plan.num_workers,
        timeout=timedelta(minutes=10),
    )
    try:
        Trainer(plan, work, rank).run()
    finally:
        dist.destroy_process_group()


def train(plan: Plan, work: Path) -> None:
    """Trains into `work`, going on from what is there. The tokenizer must be in it."""
    with TemporaryDirectory() as folder:
        spawn(_work_as, (plan, work, f"{folder}/meeting"), nprocs=plan.num_workers)

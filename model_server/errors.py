"""A shard's errors, in domain words. gRPC codes appear only in `service/`.

ShardError
 +-- ConfigRefused       a setting cannot be kept on this machine or with this model
 +-- KernelsUnavailable  kernels for GPUs cannot be compiled here
 +-- ModelRefused        the checkpoint cannot be served, with the reason
 |    +-- CheckpointBroken   files are missing, truncated or unreadable
 |    +-- ArchitectureUnfit  the load-time gate found attention that cannot be paged
 |    +-- FetchStalled       the hub began to send it, or not, and sends nothing any more
 +-- InvalidStep         a call breaks the contract: lengths, blocks, ids
 |    +-- NoBatch            a step of requests that were never sent, or were cleared
 |    +-- AdapterRefused     a LoRA adapter cannot be served with this model
 |    +-- NoAdapter          the adapter is not loaded
 |    +-- ImageRefused       the model's class does not take what stands for an image
 |    +-- ConstraintRefused  a constraint cannot be compiled for this model
 |    +-- StaleEpoch         the call is from before a restart, or from another router
 +-- OutOfMemory         the pool or the largest step does not fit
 +-- RanksDiverged       tensor-parallel ranks disagree, or one is gone
      +-- RanksLost          others are gone, and this one is fit
"""


class ShardError(Exception):
    """Root of everything that a shard raises on purpose."""


class ConfigRefused(ShardError):
    """A setting cannot be kept on this machine, or with this model."""


class KernelsUnavailable(ShardError):
    """Kernels for GPUs cannot be compiled here; the message says what is missing."""


class ModelRefused(ShardError):
    """The checkpoint cannot be served."""


class CheckpointBroken(ModelRefused):
    """Files of the checkpoint are missing, truncated or unreadable."""


class ArchitectureUnfit(ModelRefused):
    """The model's attention cannot be paged, or does not agree with its own implementation."""


class FetchStalled(ModelRefused):
    """Nothing of the checkpoint came from the hub for too long; a thread still waits for it."""


class InvalidStep(ShardError):
    """A call that breaks the contract between the tiers."""


class NoBatch(InvalidStep):
    """A step of running requests where none was prefilled since the shard was cleared."""


class ConstraintRefused(InvalidStep):
    """A constraint cannot be compiled, or not for this model; the message is for its author."""


class AdapterRefused(InvalidStep):
    """A LoRA adapter cannot be served, or not with this model; the message is for the operator."""


class NoAdapter(InvalidStep):
    """A call names an adapter that is not loaded."""


class ImageRefused(InvalidStep):
    """The model's class does not take what a processor made of an image."""


class StaleEpoch(InvalidStep):
    """The call belongs to another epoch than the one begun last."""


class OutOfMemory(ShardError):
    """The pool, or the largest step, does not fit into the device's memory."""


class RanksDiverged(ShardError):
    """Tensor-parallel ranks disagree, or one of them is gone."""


class RanksLost(RanksDiverged):
    """Other ranks ended, gave up or say nothing; this one is fit."""

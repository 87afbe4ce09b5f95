"""text-generation, which needs an older huggingface_hub than everybody else."""

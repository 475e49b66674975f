"""What makes the default run anywhere: CPU kernels for SGLang, the small model, prompts, a drafter."""

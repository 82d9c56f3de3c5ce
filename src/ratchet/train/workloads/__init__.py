"""Training jobs: models, data, the step, precision and memory."""

"""A gate for pull requests: a suite of benchmarks, head against base."""

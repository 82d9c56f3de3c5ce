"""The trusted worker: draws inputs, knows the answers, and is the rival."""

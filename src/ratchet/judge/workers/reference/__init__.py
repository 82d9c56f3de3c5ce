"""The trusted worker: it draws inputs, knows the answers, and is the rival."""

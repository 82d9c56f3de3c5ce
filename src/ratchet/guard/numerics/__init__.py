"""The first module and op whose numbers differ by more than their dtype explains."""

"""The ground of every room: errors, files, durations, git and processes."""

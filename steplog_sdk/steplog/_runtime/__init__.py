"""The impure shell: clocks, threads, context and the one door to the log."""

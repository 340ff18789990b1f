"""The command line: one file per verb. Nothing here is imported by `import steplog`."""

"""steplog beside other tools that put themselves into the same SDKs: `make test-coexistence`."""

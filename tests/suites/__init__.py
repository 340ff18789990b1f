"""The SDKs' own tests, run with steplog installed: `make test-sdk-suites`."""

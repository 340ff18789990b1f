"""Interceptors for provider SDKs: they turn an SDK's calls into recorded steps.

`steplog.install()` finds them by the entry-point group `steplog.interceptors`. They know `steplog.plugins` and
`steplog.errors` and nothing else of steplog. How one call travels:

    _scope     the logical call: one step, however many attempts the SDK makes
    _wire      the HTTP client's `send`: bind the step, then record each exchange or serve the recorded one
    _stream    bytes that arrive after `send` has returned
    _exchange  one exchange as data, and back into a response or an exception of the client's own library
    _canonical what a request is (identity) and what of it is stored
    _secrets   credentials in bodies, by the names of their fields
    _credentials  tokens and signatures, which only a request that is really sent needs
    _websocket sessions whose content is not recorded, and which say so
    _derive    model, usage, finish reason: read from the recorded bytes for people and bills, never for replay
"""

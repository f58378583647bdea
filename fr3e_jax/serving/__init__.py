"""The server of ``fr3e serve``: the decoder that requests enter and leave at any time, and its routes.

Nothing of it is imported by other verbs. `decoder` owns the device in a thread of its own, `app` owns the sockets.
"""

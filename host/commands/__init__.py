"""The commands of ``ors-host`` besides ``serve``, one module each.

Those that look at containers (``ps``, ``logs``, ``inspect``, ``kill``, ``prune``) go by the containers' labels and the state
directories, which are all the state there is: they work whether or not the host lives.
"""
